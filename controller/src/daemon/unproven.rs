//! The connections that have not proven yet who they are: from each host only so many.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Takes connections in until they have proven who they are.
#[derive(Debug)]
pub struct Unproven {
    most: usize,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    next_number: u64,
    /// The oldest first; a connection ends when its sender is gone.
    by_host: HashMap<IpAddr, VecDeque<(u64, oneshot::Sender<()>)>>,
}

/// A connection's place; it leaves with it.
#[derive(Debug)]
pub struct Place {
    unproven: Arc<Unproven>,
    host: IpAddr,
    number: u64,
    taken: oneshot::Receiver<()>,
}

impl Unproven {
    /// At most `most` of a host.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Unproven {
            most,
            queues: Mutex::default(),
        })
    }

    /// Takes a connection from `peer` in, and whether the oldest of its host loses its place for
    /// it: who proves at once who he is has done so long before, and nobody is kept out.
    pub fn enter(self: &Arc<Self>, peer: IpAddr) -> (Place, bool) {
        let host = host_of(peer);
        let mut queues = self.queues();
        let number = queues.next_number;
        queues.next_number += 1;
        let queue = queues.by_host.entry(host).or_default();
        let is_crowded = queue.len() >= self.most;
        if is_crowded {
            queue.pop_front();
        }
        let (sender, taken) = oneshot::channel();
        queue.push_back((number, sender));
        let place = Place {
            unproven: self.clone(),
            host,
            number,
            taken,
        };
        (place, is_crowded)
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// What `proof` results in; `None` when the place was lost before.
    pub async fn keep_for<T>(mut self, proof: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            result = proof => Some(result),
            _ = &mut self.taken => None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.unproven.queues();
        let Some(queue) = queues.by_host.get_mut(&self.host) else {
            return;
        };
        if let Ok(index) = queue.binary_search_by_key(&self.number, |(number, _)| *number) {
            queue.remove(index);
        }
        if queue.is_empty() {
            queues.by_host.remove(&self.host);
        }
    }
}

/// What counts as one host: every user of this one may connect from any address of 127.0.0.0/8.
fn host_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_oldest_of_the_same_host_gives_way_and_no_other() {
        let unproven = Unproven::new(2);
        let (other, _) = unproven.enter(address("10.0.0.2"));
        let (oldest, is_crowded) = unproven.enter(address("10.0.0.1"));
        assert!(!is_crowded);
        let (second, is_crowded) = unproven.enter(address("10.0.0.1"));
        assert!(!is_crowded);
        let (newest, is_crowded) = unproven.enter(address("::ffff:10.0.0.1"));
        assert!(is_crowded);
        assert_eq!(oldest.keep_for(pending::<()>()).await, None);
        for place in [other, second, newest] {
            assert_eq!(
                tokio::select! {
                    biased;
                    kept = place.keep_for(pending()) => kept,
                    () = ready(()) => Some("here"),
                },
                Some("here")
            );
        }
    }

    #[tokio::test]
    async fn who_has_proven_who_he_is_counts_no_longer() {
        let unproven = Unproven::new(2);
        for _ in 0..10 {
            let (place, is_crowded) = unproven.enter(address("10.0.0.1"));
            assert!(!is_crowded);
            assert_eq!(place.keep_for(ready("proven")).await, Some("proven"));
        }
        assert!(unproven.queues().by_host.is_empty());
    }

    #[test]
    fn all_loopback_addresses_are_one_host() {
        let unproven = Unproven::new(3);
        let places: Vec<_> = ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.9"]
            .map(|peer| unproven.enter(address(peer)))
            .into();
        let crowded: Vec<bool> = places.iter().map(|(_, is_crowded)| *is_crowded).collect();
        assert_eq!(crowded, [false, false, false, true]);
    }
}
