//! The listener for RDMA connections, which turns connection requests into streams.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bimetal_rt::Rt;
use bimetal_rt::net::Stream;
use bimetal_rt::real_time::Watch;
use bimetal_rt::sync::TaskGroup;

use crate::connection::{OWN, invalid, queues, start};
use crate::terms::Terms;
use crate::verbs::{CmChannel, CmId, Happened};

/// Maximum number of connection requests that wait to be accepted.
const BACKLOG: i32 = 64;

/// A listener at an address.
pub(crate) struct Bound {
    rt: Rt,
    id: CmId,
    watch: Watch,
    address: SocketAddr,
    closings: TaskGroup,
}

impl Bound {
    /// Listens at an address.
    ///
    /// # Errors
    /// The reason why the address cannot be used.
    pub(crate) fn bind(rt: &Rt, address: SocketAddr) -> io::Result<Bound> {
        let channel = CmChannel::new()?;
        let watch = Watch::new(rt, channel.fd())?;
        let id = CmId::new(&channel)?;
        id.listen(address, BACKLOG)?;
        let mut address = address;
        address.set_port(id.port());
        Ok(Bound {
            rt: rt.clone(),
            id,
            watch,
            address,
            closings: TaskGroup::new(rt),
        })
    }

    /// Returns the address, with the port that was chosen.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the group of tasks that end accepted connections.
    pub(crate) fn closings(&self) -> &TaskGroup {
        &self.closings
    }

    /// Accepts the next connection. The establishment of the connection can still fail after this
    /// function has returned; the stream then reports the failure.
    ///
    /// # Errors
    /// If the next connection could not be accepted. A later call can succeed.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        let channel: &Rc<CmChannel> = self.id.channel();
        loop {
            let Some(event) = channel.next()? else {
                self.watch.readable().await?;
                continue;
            };
            match (event.happened, event.request) {
                (Happened::Request, Some(request)) => return self.take(request, &event.private),
                (Happened::Failed, _) => {
                    let words = format!("rdma: {}", event.words);
                    return Err(io::Error::other(words));
                }
                _ => {}
            }
        }
    }

    fn take(&self, request: CmId, private: &[u8]) -> io::Result<Stream> {
        let peer = match Terms::decode(private) {
            Ok(peer) => peer,
            Err(why) => {
                request.reject();
                return Err(invalid(why));
            }
        };
        let queues = queues(request.with_own_channel()?)?;
        queues.id().accept(&OWN.encode())?;
        Ok(Stream::layered(start(
            &self.rt,
            queues,
            peer,
            &self.closings,
        )?))
    }
}
