//! An answer that is made once in a while, however many ask for it.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::{Compression, write::GzEncoder};
use tokio::sync::Mutex;

/// Shorter answers are not worth packing, bytes.
const WORTH_PACKING: usize = 1024;

/// An answer holds this many times as long as it took to make, so that making it takes a
/// twentieth of the time at most.
const TIMES_ITS_MAKING: u32 = 20;

/// But no longer, for that.
const LONGEST_FOR_ITS_MAKING: Duration = Duration::from_secs(10);

/// An answer and how long it holds.
#[derive(Debug)]
pub struct Kept {
    lasts: Duration,
    content_type: &'static str,
    last: Mutex<Option<Last>>,
}

/// What was made last; `None` when that failed.
#[derive(Debug)]
struct Last {
    made: Option<Made>,
    until: Instant,
}

/// An answer as it is and packed by gzip.
#[derive(Clone, Debug)]
struct Made {
    plain: Bytes,
    packed: Option<Bytes>,
}

impl Made {
    fn new(text: String) -> Self {
        Made {
            packed: packed(text.as_bytes()),
            plain: text.into(),
        }
    }
}

fn packed(text: &[u8]) -> Option<Bytes> {
    if text.len() < WORTH_PACKING {
        return None;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).ok()?;
    Some(encoder.finish().ok()?.into())
}

impl Kept {
    /// Nothing is made yet. An answer shall hold for `lasts`, or longer when it is dear.
    pub fn new(lasts: Duration, content_type: &'static str) -> Self {
        Kept {
            lasts,
            content_type,
            last: Mutex::default(),
        }
    }

    /// Answers with what was made last, or has it made: then others who ask wait for the same,
    /// and it is finished even when who asked has gone. 503 when `make` gives nothing.
    pub async fn answer(
        self: &Arc<Self>,
        headers: &HeaderMap,
        make: impl Future<Output = Option<String>> + Send + 'static,
    ) -> Response {
        let kept = self.clone();
        let made = tokio::spawn(async move { kept.current(make).await }).await;
        let Ok(Some(made)) = made else {
            return (StatusCode::SERVICE_UNAVAILABLE, "bftrainerd is busy\n").into_response();
        };
        let content_type = [(header::CONTENT_TYPE, self.content_type)];
        match made.packed.filter(|_| takes_gzip(headers)) {
            Some(packed) => {
                let encoding = [(header::CONTENT_ENCODING, "gzip")];
                (content_type, encoding, packed).into_response()
            }
            None => (content_type, made.plain).into_response(),
        }
    }

    async fn current(&self, make: impl Future<Output = Option<String>>) -> Option<Made> {
        let mut last = self.last.lock().await;
        if let Some(last) = &*last
            && Instant::now() < last.until
        {
            return last.made.clone();
        }
        let begun = Instant::now();
        let made = match make.await {
            Some(text) => {
                let making = tokio::task::spawn_blocking(move || Made::new(text));
                making.await.ok()
            }
            None => None,
        };
        // A failure is kept as well: those who wait don't each try again.
        let dear = LONGEST_FOR_ITS_MAKING.min(begun.elapsed() * TIMES_ITS_MAKING);
        *last = Some(Last {
            made: made.clone(),
            until: Instant::now() + self.lasts.max(dear),
        });
        made
    }
}

/// Whether gzip is among what is accepted (RFC 9110, section 12.5.3).
fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
            let refused = weight
                .trim()
                .strip_prefix("q=")
                .and_then(|q| q.parse().ok())
                == Some(0.0);
            name.trim().eq_ignore_ascii_case("gzip") && !refused
        })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::body::to_bytes;

    use super::*;

    fn in_runtime<T>(what: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
            .block_on(what)
    }

    async fn body(response: Response) -> Vec<u8> {
        to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap()
            .to_vec()
    }

    #[test]
    fn it_is_made_once_however_many_ask_and_anew_when_it_no_longer_holds() {
        in_runtime(async {
            let kept = Arc::new(Kept::new(Duration::from_secs(3600), "text/plain"));
            let made = Arc::new(AtomicU32::new(0));
            let ask = async || {
                let made = made.clone();
                let make = async move { Some(made.fetch_add(1, Ordering::SeqCst).to_string()) };
                body(kept.answer(&HeaderMap::new(), make).await).await
            };
            for _ in 0..20 {
                assert_eq!(ask().await, b"0");
            }
            if let Some(last) = &mut *kept.last.lock().await {
                last.until = Instant::now();
            }
            assert_eq!(ask().await, b"1");
        });
    }

    #[test]
    fn what_is_dear_is_made_less_often() {
        in_runtime(async {
            let kept = Arc::new(Kept::new(Duration::ZERO, "text/plain"));
            let make = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Some("so".to_owned())
            };
            kept.answer(&HeaderMap::new(), make).await;
            let until = kept.last.lock().await.as_ref().unwrap().until;
            let left = until.saturating_duration_since(Instant::now());
            // Two seconds, of which a busy machine may have let one go by.
            assert!(left > Duration::from_secs(1) && left <= LONGEST_FOR_ITS_MAKING);
        });
    }

    #[test]
    fn a_failure_is_said_and_not_tried_again_by_all_who_wait() {
        in_runtime(async {
            let kept = Arc::new(Kept::new(Duration::from_secs(3600), "text/plain"));
            for make in [None, Some("too late".to_owned())] {
                let response = kept.answer(&HeaderMap::new(), async { make }).await;
                assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            }
        });
    }

    #[test]
    fn who_takes_gzip_gets_less() {
        in_runtime(async {
            let text = "node ".repeat(10_000);
            for (accepted, is_packed) in [
                ("gzip, deflate, br", true),
                ("br;q=1.0, GZIP;q=0.5", true),
                ("gzip;q=0", false),
                ("identity", false),
            ] {
                let kept = Arc::new(Kept::new(Duration::ZERO, "text/plain"));
                let mut headers = HeaderMap::new();
                headers.insert(header::ACCEPT_ENCODING, accepted.parse().unwrap());
                let made = text.clone();
                let response = kept.answer(&headers, async { Some(made) }).await;
                let encoding = response.headers().get(header::CONTENT_ENCODING).cloned();
                assert_eq!(encoding.is_some(), is_packed, "{accepted}");
                let bytes = body(response).await;
                if is_packed {
                    assert!(bytes.len() < text.len() / 10);
                    let mut read = String::new();
                    let mut decoder = flate2::read::GzDecoder::new(&bytes[..]);
                    decoder.read_to_string(&mut read).unwrap();
                    assert_eq!(read, text);
                } else {
                    assert_eq!(bytes, text.as_bytes());
                }
            }
        });
    }
}
