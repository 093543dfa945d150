//! TLS handshakes on a stream. The caller must limit their duration.

use std::io;

use bimetal_rt::Rt;
use bimetal_rt::net::Stream;
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::files::{ClientTls, ServerTls};
use crate::names::names_of;
use crate::stream::{Encrypted, to_io};

impl ServerTls {
    /// Performs the handshake with a client. Returns the encrypted stream, and the names in the
    /// client's certificate.
    ///
    /// # Errors
    /// The errors of the stream `below`; `InvalidData` if the client has no trusted certificate,
    /// or does not speak TLS 1.3.
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
    /// Performs the handshake with a server. Returns the encrypted stream.
    ///
    /// # Errors
    /// The errors of the stream `below`; `InvalidData` if the server's certificate is not from a
    /// trusted authority, or is not valid for the server's name. A server that does not trust the
    /// client's certificate reports this only after the handshake; the first receive then fails.
    pub async fn connect(&self, rt: &Rt, below: Stream) -> io::Result<Stream> {
        let connection = ClientConnection::new(self.config.clone(), self.name.clone());
        let connection = connection.map_err(to_io)?;
        let encrypted = shaken(rt, below, connection.into()).await?;
        Ok(Stream::layered(encrypted))
    }
}

/// Sends and receives until the handshake is complete.
async fn shaken(rt: &Rt, below: Stream, connection: Connection) -> io::Result<Encrypted> {
    let encrypted = Encrypted::new(rt, below, connection);
    loop {
        encrypted.flush().await?;
        if !encrypted.with_connection(|connection| connection.is_handshaking()) {
            return Ok(encrypted);
        }
        if let Err(error) = encrypted.advance().await {
            // Send the alert with the reason to the peer. If this send fails, its error is ignored,
            // since the error of the handshake says more.
            let _ = encrypted.flush().await;
            return Err(error);
        }
    }
}
