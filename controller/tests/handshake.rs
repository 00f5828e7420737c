//! The handshake and the frames, with a real munged.
#![cfg(feature = "slurm")]

mod support;

use std::time::Duration;

use bftrainer::wire::{
    ClientHello, MAX_FRAME_BYTES, PROTOCOL, Query, Request, ServerHello, ServerProof,
    client_payload, server_payload,
};
use bftrainer_controller::munge::{self, MungeError};
use bftrainer_controller::net::{self, Accepted, Connection, NetError, Settings};
use serde::Serialize;
use serde::de::DeserializeOwned;
use support::munged::Munged;
use support::{own_uid, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A socket that no handshake has been made on.
struct Raw(TcpStream);

impl Raw {
    async fn read<T: DeserializeOwned>(&mut self) -> T {
        within("a frame", async {
            let bytes = self.0.read_u32().await.unwrap();
            let mut frame = vec![0; bytes as usize];
            self.0.read_exact(&mut frame).await.unwrap();
            serde_json::from_slice(&frame).unwrap()
        })
        .await
    }

    async fn write(&mut self, message: &impl Serialize) {
        let frame = serde_json::to_vec(message).unwrap();
        self.0.write_u32(frame.len() as u32).await.unwrap();
        self.0.write_all(&frame).await.unwrap();
    }
}

/// A raw client and the server's side of its handshake.
async fn raw_client(
    settings: &Settings,
) -> (Raw, tokio::task::JoinHandle<Result<Accepted, NetError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let settings = settings.clone();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        net::accept(stream, &settings).await
    });
    (Raw(TcpStream::connect(address).await.unwrap()), server)
}

/// A client's handshake and the raw server at its other end.
async fn raw_server(
    settings: &Settings,
) -> (Raw, tokio::task::JoinHandle<Result<Connection, NetError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let settings = settings.clone();
    let client = tokio::spawn(async move { net::connect(&address, own_uid(), &settings).await });
    (Raw(listener.accept().await.unwrap().0), client)
}

/// Both sides, connected.
async fn pair(settings: &Settings) -> (Connection, Accepted) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        net::accept(stream, settings).await.unwrap()
    };
    let client = net::connect(&address, own_uid(), settings);
    let (server, client) = within("both sides", async { tokio::join!(server, client) }).await;
    (client.unwrap(), server)
}

#[tokio::test]
async fn both_sides_prove_who_they_are_and_then_talk() {
    let munged = Munged::start();
    let (mut client, mut server) = pair(&munged.settings()).await;
    assert_eq!(server.uid, own_uid());
    client.write(&Request::Query(Query::Queue)).await.unwrap();
    let request: Request = server.connection.read().await.unwrap();
    assert!(matches!(request, Request::Query(Query::Queue)));
    assert_eq!(client.peer_protocol(), PROTOCOL);
}

#[tokio::test]
async fn a_server_of_another_user_is_not_trusted() {
    let munged = Munged::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let settings = munged.settings();
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let _ = net::accept(stream, &settings).await;
    };
    let expected_uid = own_uid() + 1;
    let client = net::connect(&address, expected_uid, &settings);
    let ((), client) = within("both sides", async { tokio::join!(server, client) }).await;
    let error = client.unwrap_err();
    assert!(matches!(error, NetError::WrongServer { uid, expected }
        if uid == own_uid() && expected == expected_uid));
}

#[tokio::test]
async fn a_credential_is_believed_once() {
    let munged = Munged::start();
    let socket = munged.socket();
    let credential = munge::encode(b"hello", Some(&socket)).unwrap();
    let first = munge::decode(&credential, Some(&socket)).unwrap();
    assert_eq!(
        (first.uid, first.payload.as_slice()),
        (own_uid(), b"hello".as_slice())
    );
    assert_eq!(
        munge::decode(&credential, Some(&socket)),
        Err(MungeError::Replayed)
    );
}

#[tokio::test]
async fn an_expired_credential_is_refused_with_the_reason() {
    let munged = Munged::start();
    let socket = munged.socket();
    let made = std::process::Command::new("munge")
        .args(["--no-input", "--ttl=1", "--socket"])
        .arg(&socket)
        .output()
        .unwrap();
    let credential = String::from_utf8(made.stdout).unwrap();
    let made_at = std::time::SystemTime::now();
    support::until("the credential's time is over", || {
        (made_at.elapsed().unwrap_or_default() > Duration::from_millis(2100)).then_some(())
    })
    .await;
    let error = munge::decode(credential.trim(), Some(&socket)).unwrap_err();
    assert_eq!(error, MungeError::Expired);
    assert!(error.to_string().contains("clocks"));
}

#[tokio::test]
async fn another_clusters_credential_is_refused_with_the_reason() {
    let (ours, theirs) = (Munged::start(), Munged::start());
    let credential = munge::encode(b"x", Some(&theirs.socket())).unwrap();
    let error = munge::decode(&credential, Some(&ours.socket())).unwrap_err();
    assert!(error.to_string().contains("munge key"), "{error}");
    assert!(munge::decode("nonsense", Some(&ours.socket())).is_err());
}

#[tokio::test]
async fn without_munged_the_error_names_its_socket() {
    let nowhere = std::path::Path::new("/nonexistent/munge.socket");
    let error = munge::encode(b"x", Some(nowhere)).unwrap_err().to_string();
    assert!(
        error.contains("/nonexistent/munge.socket") && error.contains("running"),
        "{error}"
    );
}

#[tokio::test]
async fn an_overheard_proof_opens_no_second_connection() {
    let munged = Munged::start();
    let settings = munged.settings();
    let (mut first, _first_server) = raw_client(&settings).await;
    let hello: ServerHello = first.read().await;
    let payload = client_payload(&hello.nonce, "client");
    let proof = ClientHello {
        protocol: PROTOCOL,
        nonce: "client".into(),
        credential: munge::encode(payload.as_bytes(), Some(&munged.socket())).unwrap(),
    };
    // Not yet used, so munged itself would still accept it.
    let (mut second, server) = raw_client(&settings).await;
    let _: ServerHello = second.read().await;
    second.write(&proof).await;
    let answer: ServerProof = second.read().await;
    assert!(
        matches!(answer, ServerProof::Refused { reason } if reason.contains("does not belong"))
    );
    assert!(matches!(
        server.await.unwrap(),
        Err(NetError::WrongCredential)
    ));
}

#[tokio::test]
async fn a_server_that_answers_with_an_old_proof_is_not_trusted() {
    let munged = Munged::start();
    let (mut server, client) = raw_server(&munged.settings()).await;
    server
        .write(&ServerHello {
            protocol: PROTOCOL,
            oldest: PROTOCOL,
            nonce: "server".into(),
        })
        .await;
    let _: ClientHello = server.read().await;
    let credential = munge::encode(b"bftrainer server server old", Some(&munged.socket())).unwrap();
    server.write(&ServerProof::Welcome { credential }).await;
    assert!(matches!(
        client.await.unwrap(),
        Err(NetError::WrongCredential)
    ));
}

#[tokio::test]
async fn a_peer_that_is_one_version_ahead_is_welcome_on_both_sides() {
    let munged = Munged::start();
    let settings = munged.settings();
    let prove = |payload: String| munge::encode(payload.as_bytes(), Some(&munged.socket()));
    let (mut client, server) = raw_client(&settings).await;
    let hello: ServerHello = client.read().await;
    client
        .write(&ClientHello {
            protocol: PROTOCOL + 1,
            nonce: "client".into(),
            credential: prove(client_payload(&hello.nonce, "client")).unwrap(),
        })
        .await;
    let answer: ServerProof = client.read().await;
    assert!(matches!(answer, ServerProof::Welcome { .. }), "{answer:?}");
    let accepted = server.await.unwrap().unwrap();
    assert_eq!(accepted.connection.peer_protocol(), PROTOCOL + 1);

    let (mut server, client) = raw_server(&settings).await;
    server
        .write(&ServerHello {
            protocol: PROTOCOL + 1,
            oldest: PROTOCOL,
            nonce: "server".into(),
        })
        .await;
    let hello: ClientHello = server.read().await;
    let credential = prove(server_payload("server", &hello.nonce)).unwrap();
    server.write(&ServerProof::Welcome { credential }).await;
    assert_eq!(client.await.unwrap().unwrap().peer_protocol(), PROTOCOL + 1);
}

#[tokio::test]
async fn versions_too_far_apart_are_refused_with_a_sentence_on_both_sides() {
    let munged = Munged::start();
    let settings = munged.settings();
    let (mut client, server) = raw_client(&settings).await;
    let _: ServerHello = client.read().await;
    client
        .write(&ClientHello {
            protocol: 0,
            nonce: String::new(),
            credential: String::new(),
        })
        .await;
    let answer: ServerProof = client.read().await;
    assert!(matches!(answer, ServerProof::Refused { reason } if reason.contains("protocol")));
    assert!(server.await.unwrap().is_err());

    for (protocol, oldest) in [(0, 0), (PROTOCOL + 2, PROTOCOL + 1)] {
        let (mut server, client) = raw_server(&settings).await;
        let hello = ServerHello {
            protocol,
            oldest,
            nonce: "x".into(),
        };
        server.write(&hello).await;
        let error = client.await.unwrap().unwrap_err();
        assert!(matches!(error, NetError::Version { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_claimed_length_beyond_the_limit_is_refused_before_it_is_sent() {
    let munged = Munged::start();
    let (mut client, server) = raw_client(&munged.settings()).await;
    client.0.write_u32(u32::MAX).await.unwrap();
    let error = within("the refusal", server).await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            NetError::TooLong {
                most: MAX_FRAME_BYTES,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn garbage_ends_the_connection() {
    let munged = Munged::start();
    for garbage in [b"\0\0\0\x02{}".as_slice(), b"\0\0\0\x01\xff", b"\0\0\0\0"] {
        let (mut client, server) = raw_client(&munged.settings()).await;
        client.0.write_all(garbage).await.unwrap();
        let error = within("the end", server).await.unwrap().unwrap_err();
        assert!(matches!(error, NetError::Garbage(_)), "{error}");
    }
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_dropped_in_time() {
    let munged = Munged::start();
    let mut settings = munged.settings();
    settings.handshake_timeout = Duration::from_millis(50);
    let (_client, server) = raw_client(&settings).await;
    let error = within("the server's patience", server)
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, NetError::TimeOut(..)), "{error}");
    let (_server, client) = raw_server(&settings).await;
    let error = within("the client's patience", client)
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, NetError::TimeOut(..)), "{error}");
}

#[tokio::test]
async fn half_a_frame_is_not_waited_for_but_silence_between_frames_is() {
    let munged = Munged::start();
    let settings = Settings {
        frame_timeout: Duration::from_millis(50),
        handshake_timeout: support::DEADLINE,
        ..munged.settings()
    };
    let (mut client, server) = raw_client(&settings).await;
    client.0.write_all(b"\0\0\0\x09half").await.unwrap();
    let error = within("the server's patience", server)
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(error, NetError::TimeOut(_, what) if what.contains("rest")),
        "{error}"
    );

    let (client, mut server) = pair(&munged.settings()).await;
    let wait = server.connection.read::<Request>();
    assert!(
        tokio::time::timeout(Duration::from_millis(200), wait)
            .await
            .is_err()
    );
    drop(client);
}

#[tokio::test]
async fn a_read_that_was_given_up_loses_no_byte() {
    let munged = Munged::start();
    let (client, server) = pair(&munged.settings()).await;
    let (_, mut writer) = client.split::<Request, Request>();
    let (mut reader, _) = server.connection.split::<Request, Request>();
    let writing = tokio::spawn(async move {
        for number in 0..200 {
            let array_job_id = Some(number);
            let query = Query::Show { array_job_id };
            writer.write(&Request::Query(query)).await.unwrap();
            tokio::task::yield_now().await;
        }
        writer
    });
    for number in 0..200 {
        let request = within("a request", async {
            loop {
                tokio::select! {
                    biased;
                    request = reader.read() => break request.unwrap(),
                    () = tokio::task::yield_now() => {}
                }
            }
        })
        .await;
        let Request::Query(Query::Show { array_job_id }) = request else {
            panic!("{request:?}");
        };
        assert_eq!(array_job_id, Some(number));
    }
    writing.await.unwrap();
}
