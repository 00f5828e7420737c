//! A small HTTP server for this host alone: what the daemon shows. Any local
//! user may connect, so connections are few and slow ones are closed.

mod kept;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::logging::Seldom;

pub use kept::Kept;

/// Connections that may be open at once; further ones wait.
const MOST_CONNECTIONS: usize = 64;

/// A request's head must be there in this time, and the next one's on a
/// connection that is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection is not kept for longer; browsers and Prometheus open another one.
const LIFETIME: Duration = Duration::from_secs(300);

/// How long an answer that is under way then may take.
const LAST_ANSWER: Duration = Duration::from_secs(10);

/// What browsers are told with every answer: nothing but what this server gives may run or be
/// loaded, no other page may show or embed it, and nothing is kept on disk.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (header::CACHE_CONTROL, "no-store"),
];

/// Serves `router` for ever.
pub async fn serve(listener: TcpListener, router: Router) {
    let router = router.layer(middleware::from_fn(only_this_host));
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut failed = Seldom::default();
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(more) = failed.due() {
                    log::warn!("http: a connection could not be accepted: {error}{more}");
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let mut result = timeout(LIFETIME, connection.as_mut()).await;
            if result.is_err() {
                connection.as_mut().graceful_shutdown();
                result = timeout(LAST_ANSWER, connection).await;
            }
            if let Ok(Err(error)) = result {
                log::debug!("http: {error}");
            }
            drop(place);
        });
    }
}

/// A web page elsewhere could have its name resolved to this host and read what
/// is shown here through a user's browser: it would send that name.
async fn only_this_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|value| value.to_str().ok()).unwrap_or("");
    let response = if is_this_host(host) {
        next.run(request).await
    } else {
        let said = "this page is shown at localhost, 127.0.0.1 or [::1] only\n";
        (StatusCode::FORBIDDEN, said).into_response()
    };
    (HEADERS, response).into_response()
}

fn is_this_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    name == "localhost"
        || name == "[::1]"
        || name
            .parse::<std::net::Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_served() {
        for host in [
            "localhost",
            "localhost:80",
            "127.0.0.1:7116",
            "[::1]:7116",
            "127.0.0.2",
        ] {
            assert!(is_this_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:7116",
            "127.0.0.1.evil.example",
            "10.0.0.1",
        ] {
            assert!(!is_this_host(host), "{host}");
        }
    }
}
