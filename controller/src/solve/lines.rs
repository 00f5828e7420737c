//! Lines of a stream, whatever is in them: no line can take more memory than a bound, and one
//! that is too long is skipped to its end.

use std::io::{self, BufRead};

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// Longer than the bound.
    TooLong,
}

/// Reads the next line of at most `most` bytes; `None` at the end. Adds the bytes taken from the
/// stream to `taken`.
pub fn next(from: &mut impl BufRead, most: usize, taken: &mut u64) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    let (mut is_long, mut has_begun) = (false, false);
    loop {
        let buffer = match from.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            return Ok(has_begun.then(|| finished(line, is_long)));
        }
        has_begun = true;
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        if line.len() + part.len() > most {
            is_long = true;
            line = Vec::new();
        } else if !is_long {
            line.extend_from_slice(part);
        }
        let used = end.map_or(buffer.len(), |end| end + 1);
        from.consume(used);
        *taken += used as u64;
        if end.is_some() {
            return Ok(Some(finished(line, is_long)));
        }
    }
}

fn finished(mut line: Vec<u8>, is_long: bool) -> Line {
    if is_long {
        return Line::TooLong;
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Line::Bytes(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<Line> {
        let mut from = io::BufReader::with_capacity(3, text);
        let mut taken = 0;
        let lines = std::iter::from_fn(|| next(&mut from, 5, &mut taken).unwrap()).collect();
        assert_eq!(taken, text.len() as u64);
        lines
    }

    fn line(text: &str) -> Line {
        Line::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_end_with_either_newline_or_the_stream() {
        assert_eq!(all(b""), []);
        assert_eq!(all(b"\n"), [line("")]);
        assert_eq!(
            all(b"a\r\nbc\n\nd"),
            [line("a"), line("bc"), line(""), line("d")]
        );
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped() {
        assert_eq!(
            all(b"12345\n123456\nabcdefghijklmnop\nx"),
            [line("12345"), Line::TooLong, Line::TooLong, line("x")]
        );
    }
}
