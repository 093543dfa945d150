//! Establishes a path, that is, makes a connection and exchanges greetings with the target. Also
//! lists the exports of a target.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bimetal_proto::brp::inbound::ToInitiator;
use bimetal_proto::brp::wire::VERSION;
use bimetal_proto::brp::{Hello, InitiatorInbound, Listed, Outbound, Purpose, Welcome};
use bimetal_rt::Rt;
use bimetal_rt::net::{Address, Inbox, Stream};

use crate::error::ConnectError;
use crate::options::TlsOptions;

/// Size of the receive buffer during the greeting.
const BUFFER_BYTES: usize = 4096;
/// Maximum duration of one attempt to establish a path or to list the exports.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// Function that makes a connection to the target. It is called each time that a connection is
/// needed.
pub type Connector = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Stream>>>>>;

/// Returns a connector for an address.
pub(crate) fn connector(rt: &Rt, address: &Address, tls: Option<&TlsOptions>) -> Connector {
    let (rt, address, tls) = (rt.clone(), address.clone(), tls.cloned());
    Rc::new(move || {
        let (rt, address, tls) = (rt.clone(), address.clone(), tls.clone());
        Box::pin(async move {
            let Some(tls) = tls else {
                return connect(&rt, &address).await;
            };
            // Load the files before connecting, so that a mistake in them does not appear as an
            // error of the target.
            let tls = tls.load(&address).map_err(io::Error::other)?;
            let below = Stream::connect(&rt, &address).await?;
            tls.connect(&rt, below).await
        })
    })
}

async fn connect(rt: &Rt, address: &Address) -> io::Result<Stream> {
    match address {
        Address::Rdma(address) => bimetal_rdma::connect(rt, *address).await,
        Address::Unix(_) | Address::Tcp(_) => Stream::connect(rt, address).await,
    }
}

/// A connection that has become a path.
pub(crate) struct Established {
    pub(crate) stream: Stream,
    pub(crate) welcome: Welcome,
    pub(crate) inbound: InitiatorInbound,
    pub(crate) outbound: Outbound,
    /// Bytes that were received directly after the greeting. There are none if the target sends
    /// nothing before it gets commands.
    pub(crate) early: Vec<u8>,
}

/// Makes one attempt to establish a path. The attempt takes at most `within`, and at most
/// `ATTEMPT_MAX`.
pub(crate) async fn establish(
    rt: &Rt,
    connector: &Connector,
    hello: Hello,
    within: Duration,
) -> Result<Established, ConnectError> {
    let attempt = async {
        let mut greeting = Greeting::say(rt, connector().await?, hello).await?;
        match greeting.next().await? {
            ToInitiator::Welcome(welcome) => {
                let early = greeting.inbox.unread().to_vec();
                Ok(Established {
                    stream: greeting.stream,
                    welcome,
                    inbound: greeting.inbound,
                    outbound: greeting.outbound,
                    early,
                })
            }
            ToInitiator::Refused(refusal) => Err(ConnectError::Refused(refusal)),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    };
    // Dropping an attempt that takes too long is safe, because no request has been sent over it.
    match rt.timeout(within.min(ATTEMPT_MAX), attempt).await {
        Ok(result) => result,
        Err(_elapsed) => Err(ConnectError::Silent),
    }
}

/// Returns the exports that a target offers to this initiator, over TLS if `tls` is given.
///
/// # Errors
/// If the target cannot be reached, or answers with something other than a list.
pub async fn list(
    rt: &Rt,
    address: &Address,
    tls: Option<&TlsOptions>,
) -> Result<Vec<Listed>, ConnectError> {
    let hello = Hello {
        version_min: VERSION,
        version_max: VERSION,
        features: 0,
        session: rt.random_uuid()?,
        path: 1,
        purpose: Purpose::List,
        name: String::new(),
    };
    let attempt = async {
        let stream = connector(rt, address, tls)().await?;
        let mut greeting = Greeting::say(rt, stream, hello).await?;
        let mut exports = Vec::new();
        loop {
            match greeting.next().await? {
                ToInitiator::Listed(export) => exports.push(export),
                ToInitiator::ListEnd => return Ok(exports),
                ToInitiator::Refused(refusal) => return Err(ConnectError::Refused(refusal)),
                _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            }
        }
    };
    match rt.timeout(ATTEMPT_MAX, attempt).await {
        Ok(result) => result,
        Err(_elapsed) => Err(ConnectError::Silent),
    }
}

/// A connection on which a `HELLO` was sent.
struct Greeting {
    stream: Stream,
    inbound: InitiatorInbound,
    outbound: Outbound,
    inbox: Inbox,
}

impl Greeting {
    async fn say(rt: &Rt, stream: Stream, hello: Hello) -> Result<Greeting, ConnectError> {
        let (mut out, mut outbound) = (Vec::new(), Outbound::new());
        hello.encode(&mut outbound, &mut out);
        stream.send(rt.pool().copy_of(&out).into()).await?;
        Ok(Greeting {
            stream,
            inbound: InitiatorInbound::new(hello.features),
            outbound,
            inbox: Inbox::new(rt.pool().alloc_now(BUFFER_BYTES)),
        })
    }

    async fn next(&mut self) -> Result<ToInitiator, ConnectError> {
        loop {
            let unread = self.inbox.unread();
            if let Some((message, taken)) = self.inbound.next(unread, &mut Vec::new())? {
                self.inbox.consume(taken);
                return Ok(message);
            }
            if !self.inbox.receive(&self.stream).await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}
