//! Tests this crate's NBD client against its server, in memory, with all combinations of negotiable
//! features.

use crate::common::*;
use bimetal_proto::nbd::{
    ClientHandshake, ClientProgress, ClientSession, Refusal, ServerHandshake, ServerProgress,
    ServerSession, Wishes,
};

/// Runs a handshake whose messages are cut into fragments, and returns the outcome of both ends.
fn handshake(
    wishes: Wishes,
    fragment_bytes: usize,
) -> (Option<ClientProgress>, Option<ServerProgress>) {
    let mut to_client = Vec::new();
    let mut to_server = Vec::new();
    let mut server = ServerHandshake::start(&mut to_client);
    let mut client = ClientHandshake::new(wishes);
    let (mut client_end, mut server_end) = (None, None);
    // Each round transfers one fragment in each direction. A thousand rounds are enough, since no
    // handshake in these tests has a thousand bytes.
    for _ in 0..1000 {
        if client_end.is_none() {
            let fragment = fragment_bytes.min(to_client.len());
            let (taken, progress) = client
                .feed(&to_client[..fragment], &mut to_server)
                .expect("a sound server");
            to_client.drain(..taken);
            client_end = Some(progress).filter(|end| *end != ClientProgress::NeedMore);
        }
        if server_end.is_none() {
            let fragment = fragment_bytes.min(to_server.len());
            let (taken, progress) = server
                .feed(&to_server[..fragment], &mut to_client, &Two)
                .expect("a sound client");
            to_server.drain(..taken);
            server_end = Some(progress)
                .filter(|end| !matches!(end, ServerProgress::NeedMore | ServerProgress::Answered));
        }
    }
    // A client that sends an abort ends without waiting for the acknowledgement.
    let refused = matches!(client_end, Some(ClientProgress::Refused(_)));
    assert_eq!(
        (to_client.len(), to_server.len()),
        (if refused { 20 } else { 0 }, 0)
    );
    (client_end, server_end)
}

fn agreed(wishes: Wishes, fragment_bytes: usize) -> (ClientSession, ServerSession) {
    match handshake(wishes, fragment_bytes) {
        (
            Some(ClientProgress::Transmission(client)),
            Some(ServerProgress::Transmission(server)),
        ) => (client, server),
        other => panic!("no transmission: {other:?}"),
    }
}

#[test]
fn both_ends_agree() {
    for fragment_bytes in [1, 13, usize::MAX] {
        for (structured_replies, base_allocation) in [(false, false), (true, false), (true, true)] {
            for (name, index, size_bytes) in [
                ("", 0, 1_u64 << 20),
                ("vol", 0, 1 << 20),
                ("aux", 1, 2 << 20),
            ] {
                let export_name = name.to_owned();
                let wishes = Wishes {
                    export_name,
                    structured_replies,
                    base_allocation,
                    tls: false,
                };
                let (client, server) = agreed(wishes, fragment_bytes);
                assert_eq!(server.export_index, index);
                assert_eq!(client.info, server.info);
                assert_eq!(client.info.size_bytes, size_bytes);
                assert!(client.block_sizes_advertised);
                assert_eq!(client.negotiated, server.negotiated);
                assert_eq!(client.negotiated.structured_replies, structured_replies);
                assert_eq!(
                    client.negotiated.base_allocation_id.is_some(),
                    base_allocation
                );
                let flags = if structured_replies {
                    FLAGS
                } else {
                    FLAGS_WITHOUT_DF
                };
                assert_eq!(client.info.transmission_flags, flags);
            }
        }
    }
}

#[test]
fn an_unknown_export_is_refused_at_both_ends() {
    for (structured_replies, base_allocation) in [(false, false), (true, false), (true, true)] {
        let export_name = "none".to_owned();
        let wishes = Wishes {
            export_name,
            structured_replies,
            base_allocation,
            tls: false,
        };
        for fragment_bytes in [1, usize::MAX] {
            let (client, server) = handshake(wishes.clone(), fragment_bytes);
            assert!(matches!(
                client,
                Some(ClientProgress::Refused(Refusal {
                    option: 7,
                    reply_type: 0x8000_0006,
                    ..
                }))
            ));
            assert_eq!(server, Some(ServerProgress::Closed));
        }
    }
}
