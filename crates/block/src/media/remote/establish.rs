//! Establishes a connection: connects and completes the handshake up to the transmission phase.

use std::io;
use std::time::Duration;

use bimetal_proto::Escaped;
use bimetal_proto::nbd::wire::rep::ERR_BIT;
use bimetal_proto::nbd::{
    ClientHandshake, ClientProgress, ClientSession, ProtocolError, Refusal, Wishes,
};
use bimetal_rt::Rt;
use bimetal_rt::net::Stream;

use super::{Connector, Secure};

/// Size of the receive buffer during the handshake.
const BUFFER_BYTES: usize = 4096;
/// Time limit of one attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// A connection in the transmission phase.
pub(super) struct Established {
    pub(super) stream: Stream,
    pub(super) session: ClientSession,
    /// Bytes received after the last byte of the handshake. Normally there are none, because a
    /// server sends nothing until it has received a request.
    pub(super) early: Vec<u8>,
}

/// Reason why no connection could be established, as reported to the operator.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer is not a valid NBD server: {0}")]
    Protocol(#[from] ProtocolError),
    #[error("the server refused the connection: {}", words(.0))]
    Refused(Refusal),
    #[error("the server sent data outside of TLS that must be inside")]
    OutsideTls,
    #[error("the server did not answer in time")]
    Silent,
}

fn words(refusal: &Refusal) -> String {
    let Refusal {
        option,
        reply_type,
        message,
    } = refusal;
    let error = reply_type & !ERR_BIT;
    format!("option {option}, error {error} {}", Escaped(message))
        .trim_end()
        .to_owned()
}

/// Attempts once to establish a connection, for at most `within`.
pub(super) async fn establish(
    rt: &Rt,
    connector: &Connector,
    secure: Option<&Secure>,
    export: &str,
    within: Duration,
) -> Result<Established, Failure> {
    let attempt = async {
        let stream = connector().await?;
        negotiate(rt, stream, secure, export).await
    };
    // Dropping an attempt is safe, because no request has been sent yet.
    match rt.timeout(within.min(ATTEMPT_MAX), attempt).await {
        Ok(result) => result,
        Err(_elapsed) => Err(Failure::Silent),
    }
}

async fn negotiate(
    rt: &Rt,
    stream: Stream,
    secure: Option<&Secure>,
    export: &str,
) -> Result<Established, Failure> {
    let mut machine = ClientHandshake::new(Wishes {
        export_name: export.to_owned(),
        structured_replies: true,
        base_allocation: true,
        tls: secure.is_some(),
    });
    let (mut out, mut stream) = (Vec::new(), stream);
    let mut buf = rt.pool().alloc_now(BUFFER_BYTES);
    loop {
        let (result, back) = stream.recv(buf, 0).await;
        buf = back;
        let count = result?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let (taken, progress) = machine.feed(&buf[..count], &mut out)?;
        if let (ClientProgress::StartTls, Some(secure)) = (&progress, secure) {
            if taken < count {
                return Err(Failure::OutsideTls);
            }
            stream = secure(stream).await?;
            machine.secured(&mut out);
        }
        if !out.is_empty() {
            let sent = stream.send(rt.pool().copy_of(&out).into()).await;
            out.clear();
            // A server that has refused the connection can close it before it receives the client's
            // last message. So after a refusal, an error of the send is ignored.
            if !matches!(progress, ClientProgress::Refused(_)) {
                sent?;
            }
        }
        match progress {
            ClientProgress::NeedMore | ClientProgress::StartTls => {}
            ClientProgress::Refused(refusal) => return Err(Failure::Refused(refusal)),
            ClientProgress::Transmission(session) => {
                let early = buf[taken..count].to_vec();
                return Ok(Established {
                    stream,
                    session,
                    early,
                });
            }
        }
    }
}
