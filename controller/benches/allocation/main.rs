mod instances;
use bftrainer_controller::solver::milp::*;
use instances::*;
use std::time::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let get = |i: usize, d: usize| a.get(i).and_then(|s| s.parse().ok()).unwrap_or(d);
    let (j, k, n, events) = (get(1, 30), get(2, 4), get(3, 1000), get(4, 60));
    let same = get(5, 0) == 1;
    let limit = get(6, 5000);
    let mut chain = Chain::new(get(7, 1) as u64, j, k, n as u32, same);
    let mut milp = Milp::new().unwrap();
    let mut times = vec![];
    let mut gaps: f64 = 0.0;
    for e in 0..events {
        let t = Instant::now();
        let mut log = vec![];
        let p = chain.problem().clone();
        let r = milp.solve(&p, None, Duration::from_millis(limit as u64), &mut |p| {
            log.push((t.elapsed(), p.clone()))
        });
        let dt = t.elapsed();
        match r {
            Ok(r) => {
                let v = p.objective(&r.shares).unwrap();
                let inc = p.objective(&log.last().unwrap().1.shares).unwrap();
                println!(
                    "{e:3} {} {:.3}s prep {:.3} bin {} opt {} gap {:.2e} rootgap {:.2e} incgap {:.2e}",
                    if chain.is_burst() { "B" } else { " " },
                    dt.as_secs_f64(),
                    milp.effort().prepared.as_secs_f64(),
                    milp.effort().binaries,
                    r.optimal,
                    (r.bound - v) / v,
                    (log.last().unwrap().1.bound - v) / v,
                    (v - inc) / v
                );
                if !r.optimal {
                    gaps = gaps.max((r.bound - v) / v);
                }
                times.push(dt.as_secs_f64());
                chain.advance(&r.shares);
            }
            Err(f) => {
                println!("FAIL {f:?}");
                break;
            }
        }
    }
    times.sort_by(f64::total_cmp);
    println!(
        "median {:.3} p95 {:.3} max {:.3} within .5: {}/{} gap {gaps:.2e}",
        times[times.len() / 2],
        times[times.len() * 95 / 100],
        times[times.len() - 1],
        times.iter().filter(|t| **t <= 0.5).count(),
        times.len()
    );
}
