//! Slurm's host lists, such as `n[1-3,07-10],gpu1,r[1-2]n[1-4]`, without libslurm.

/// Most nodes that one list may name.
const MAX_HOSTS: usize = 1 << 20;

/// Most digits of a number in a list.
const MAX_DIGITS: usize = 18;

/// The names in `list`, in its order.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(list)? {
        let item = item.trim();
        if item.is_empty() {
            continue;
        }
        let room = MAX_HOSTS - hosts.len();
        hosts.extend(expand_item(item, room)?);
    }
    Ok(hosts)
}

fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let (mut items, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' if inside => return Err(format!("`{list}` has a bracket within a bracket")),
            '[' => inside = true,
            ']' if !inside => return Err(format!("`{list}` closes a bracket that is not open")),
            ']' => inside = false,
            ',' if !inside => {
                items.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("`{list}` has a bracket that is not closed"));
    }
    items.push(&list[begin..]);
    Ok(items)
}

/// One prefix with any number of brackets.
fn expand_item(item: &str, room: usize) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after
            .split_once(']')
            .ok_or_else(|| format!("`{item}` has a bracket that is not closed"))?;
        let numbers = numbers(ranges, room)?;
        if names.len().saturating_mul(numbers.len()) > room {
            return Err(too_many());
        }
        names = names
            .iter()
            .flat_map(|name| {
                numbers
                    .iter()
                    .map(move |number| format!("{name}{before}{number}"))
            })
            .collect();
        rest = after;
    }
    if names.len() > room {
        return Err(too_many());
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

/// The numbers of `1-3,07-10`, padded as they are written.
fn numbers(ranges: &str, room: usize) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let valid = !text.is_empty()
                && text.len() <= MAX_DIGITS
                && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = valid.then(|| text.parse::<u64>().ok()).flatten();
            number.ok_or_else(|| format!("`{range}` is not a range of numbers"))
        };
        let (low, high) = (number(first)?, number(last)?);
        if low > high {
            return Err(format!("`{range}` runs backwards"));
        }
        if high - low >= (room - numbers.len().min(room)) as u64 {
            return Err(too_many());
        }
        let width = first.len();
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

fn too_many() -> String {
    format!("more than {MAX_HOSTS} nodes in one list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_keep_their_zeros_and_brackets_multiply() {
        assert_eq!(
            expand("n[1-2,08-10],gpu1,r[1-2]s[3-4]x").unwrap(),
            [
                "n1", "n2", "n08", "n09", "n10", "gpu1", "r1s3x", "r1s4x", "r2s3x", "r2s4x"
            ]
        );
        assert!(expand("").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_host_list_is_refused() {
        for list in [
            "n[1-2",
            "n1-2]",
            "n[[1]]",
            "n[a-b]",
            "n[3-1]",
            "n[1-]",
            "n[]",
            "n[1-99999999999]",
            "a[1-2000]b[1-2000]",
            "n[99999999999999999999]",
        ] {
            assert!(expand(list).is_err(), "{list}");
        }
    }
}
