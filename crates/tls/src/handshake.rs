//! From a stream to one with TLS on it. Whoever calls bounds the time.

use std::io;

use bimetal_rt::Rt;
use bimetal_rt::net::Stream;
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::files::{ClientTls, ServerTls};
use crate::names::names_of;
use crate::stream::{Encrypted, to_io};

impl ServerTls {
    /// Takes a client's handshake: the stream, and the names in its certificate.
    ///
    /// # Errors
    /// Those of the stream below; `InvalidData` when the client has no certificate that is
    /// believed, or speaks anything else than TLS 1.3.
    pub async fn accept(&self, rt: &Rt, below: Stream) -> io::Result<(Stream, Vec<String>)> {
        let connection = ServerConnection::new(self.0.clone()).map_err(to_io)?;
        let encrypted = shaken(rt, below, connection.into()).await?;
        let names = encrypted.with_connection(|connection| {
            let certificates = connection.peer_certificates().unwrap_or_default();
            certificates.first().map(names_of).unwrap_or_default()
        });
        Ok((Stream::layered(encrypted), names))
    }
}

impl ClientTls {
    /// Begins TLS with a server.
    ///
    /// # Errors
    /// Those of the stream below; `InvalidData` when the server has no certificate that is
    /// believed, or none for its name. That it does not believe ours, it says only after this: then
    /// the first receive fails.
    pub async fn connect(&self, rt: &Rt, below: Stream) -> io::Result<Stream> {
        let connection = ClientConnection::new(self.config.clone(), self.name.clone());
        let connection = connection.map_err(to_io)?;
        let encrypted = shaken(rt, below, connection.into()).await?;
        Ok(Stream::layered(encrypted))
    }
}

/// Sends and receives until both ends know each other.
async fn shaken(rt: &Rt, below: Stream, connection: Connection) -> io::Result<Encrypted> {
    let encrypted = Encrypted::new(rt, below, connection);
    loop {
        encrypted.flush().await?;
        if !encrypted.with_connection(|connection| connection.is_handshaking()) {
            return Ok(encrypted);
        }
        if let Err(error) = encrypted.advance().await {
            // Why, for the peer. If it is gone, our own error says more.
            let _ = encrypted.flush().await;
            return Err(error);
        }
    }
}
