//! Access rights of clients to exports, over both protocols, in virtual time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use crate::common::*;
use bimetal_block::Device;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_client::{Connector, Error, Options, RefusalCode, Session, Status, right};
use bimetal_export::{Client, ExportConfig, Protocol, Rights, Rule, Server, Who};
use bimetal_proto::brp::inbound::ToInitiator;
use bimetal_proto::brp::{Hello, InitiatorInbound, Outbound, Purpose};
use bimetal_rt::net::{Peer, PipeOptions, Stream};

const ALICE: u32 = 1000;
const BOB: u32 = 1001;
const STAFF: u32 = 50;
const ERR_UNKNOWN: u32 = (1 << 31) + 6;
const EPERM: u32 = 1;

fn user(uid: u32) -> Client {
    let gids = if uid == BOB {
        vec![uid, STAFF]
    } else {
        vec![uid]
    };
    Client::Local(Peer {
        uid,
        gids,
        is_own_user: false,
    })
}

fn rule(who: Who, rights: Rights) -> Rule {
    Rule { who, rights }
}

/// Creates a server with three exports: Alice may write `alone` and `both`, the staff may read
/// `both`, and `plain` has no rules. `alone` is the default export because its name is the first.
fn served(protocol: Protocol) -> Served {
    let rt = virtual_rt();
    let alice = rule(Who::User(ALICE), Rights::ReadWrite);
    let staff = rule(Who::Group(STAFF), Rights::ReadOnly);
    let exports = [
        ("alone", Some(vec![alice.clone()])),
        ("both", Some(vec![staff, alice])),
        ("plain", None),
    ];
    let exports = exports.map(|(name, clients)| {
        let config = ExportConfig {
            protocol,
            clients,
            ..ExportConfig::new(name, name, address())
        };
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
        (config, device)
    });
    let server = Server::new(&rt, exports.to_vec());
    Served { rt, server }
}

fn stream(served: &Served, client: &Client) -> Stream {
    let (ours, theirs) = Stream::pair(&served.rt, PipeOptions::default());
    served.server.serve_client(&address(), theirs, client);
    ours
}

/// Encodes the data of the NBD options `GO` and `INFO` for an export name, without information
/// requests.
fn named(name: &str) -> Vec<u8> {
    [
        &(name.len() as u32).to_be_bytes()[..],
        name.as_bytes(),
        &[0, 0],
    ]
    .concat()
}

async fn nbd(served: &Served, client: &Client) -> Raw {
    let mut raw = Raw::over(&served.rt, stream(served, client));
    assert_eq!(raw.take(18).await, b"NBDMAGICIHAVEOPT\0\x03");
    raw.send(&[0, 0, 0, 3]).await;
    raw
}

/// Returns the names that `LIST` (3) reports.
async fn nbd_names(raw: &mut Raw) -> Vec<String> {
    raw.option(3, &[]).await;
    let mut names = Vec::new();
    loop {
        match raw.reply().await {
            (2, data) => names.push(String::from_utf8(data[4..].to_vec()).unwrap()),
            (1, _) => return names,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn nbd_shows_each_client_what_it_may_use() {
    served(Protocol::Nbd).run(async |served| {
        let mut alice = nbd(served, &user(ALICE)).await;
        assert_eq!(nbd_names(&mut alice).await, ["alone", "both"]);
        let mut bob = nbd(served, &user(BOB)).await;
        assert_eq!(nbd_names(&mut bob).await, ["both"]);
        let mut nobody = nbd(served, &Client::Unknown).await;
        assert_eq!(nbd_names(&mut nobody).await, ["plain"]);
        served.stop().await;
    });
}

#[test]
fn nbd_answers_for_a_hidden_export_as_for_one_that_does_not_exist() {
    served(Protocol::Nbd).run(async |served| {
        let mut bob = nbd(served, &user(BOB)).await;
        bob.option(8, &[]).await;
        assert_eq!(bob.reply().await.0, 1);
        // Options 6 and 7 are INFO and GO. Options 9 and 10 are the two metadata options; their
        // data has the name, followed by a 32-bit count.
        for option in [6, 7, 9, 10] {
            let mut answers = Vec::new();
            for name in ["alone", "plain", "never"] {
                let data = match option {
                    6 | 7 => named(name),
                    _ => [named(name), vec![0, 0]].concat(),
                };
                bob.option(option, &data).await;
                answers.push(bob.reply().await);
            }
            assert_eq!(answers[0].0, ERR_UNKNOWN, "option {option}");
            assert_eq!(answers[0], answers[2], "option {option}");
            assert_eq!(answers[1], answers[2], "option {option}");
        }
        // The server cannot answer EXPORT_NAME (1) with an error, so it ends the connection.
        for name in [&b"alone"[..], b"never"] {
            let mut bob = nbd(served, &user(BOB)).await;
            bob.option(1, name).await;
            assert!(bob.at_end().await);
        }
        served.stop().await;
    });
}

#[test]
fn nbd_lets_a_reader_read_and_answers_changes_with_eperm() {
    served(Protocol::Nbd).run(async |served| {
        let mut alice = nbd(served, &user(ALICE)).await;
        alice.option(1, b"both").await;
        assert_eq!(alice.take(10).await[9] & 2, 0, "READ_ONLY is bit 1");
        alice.write(0, 1, 0, &[7; 4096]).await;
        alice.expect(1, 0).await;

        let mut bob = nbd(served, &user(BOB)).await;
        // Bob's default export is the first export that Bob may see.
        bob.option(1, b"").await;
        assert_eq!(bob.take(10).await[9] & 2, 2);
        bob.write(0, 2, 0, &[8; 4096]).await;
        bob.expect(2, EPERM).await;
        for command in [TRIM, ZEROES] {
            bob.request(0, command, 3, 0, 4096).await;
            bob.expect(3, EPERM).await;
        }
        assert_eq!(bob.read(0, 4096).await, [7; 4096]);
        bob.request(0, FLUSH, 4, 0, 0).await;
        bob.expect(4, 0).await;
        served.stop().await;
    });
}

fn connector(served: &Served, client: Client) -> Connector {
    let served = served.clone();
    Rc::new(move || {
        let ours = stream(&served, &client);
        let connected: Pin<Box<dyn Future<Output = io::Result<Stream>>>> =
            Box::pin(async move { Ok(ours) });
        connected
    })
}

async fn session(served: &Served, client: Client, name: &str) -> Session {
    let options = Options {
        export: name.to_owned(),
        ..Options::new(address())
    };
    let connectors = vec![connector(served, client)];
    Session::over(&served.rt, connectors, options)
        .await
        .unwrap()
}

/// Returns all messages of a target in answer to one `HELLO`, decoded and as bytes.
async fn answers(
    served: &Served,
    client: &Client,
    purpose: Purpose,
    name: &str,
) -> (Vec<ToInitiator>, Vec<u8>) {
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        features: 0,
        session: [9; 16],
        path: 1,
        purpose,
        name: name.to_owned(),
    };
    let (mut bytes, mut outbound) = (Vec::new(), Outbound::new());
    hello.encode(&mut outbound, &mut bytes);
    let mut raw = Raw::over(&served.rt, stream(served, client));
    raw.send(&bytes).await;
    let bytes = raw.take(usize::MAX).await;
    let (mut inbound, mut rest, mut messages) = (InitiatorInbound::new(0), &bytes[..], Vec::new());
    while let Some((message, taken)) = inbound.next(rest, &mut Vec::new()).unwrap() {
        messages.push(message);
        rest = &rest[taken..];
    }
    assert!(rest.is_empty());
    (messages, bytes)
}

#[test]
fn brp_shows_each_client_what_it_may_use() {
    served(Protocol::Brp).run(async |served| {
        for (client, names) in [
            (user(ALICE), &[("alone", false), ("both", false)][..]),
            (user(BOB), &[("both", true)]),
            (Client::Unknown, &[("plain", false)]),
        ] {
            let (messages, _) = answers(served, &client, Purpose::List, "").await;
            let (end, listed) = messages.split_last().unwrap();
            assert_eq!(*end, ToInitiator::ListEnd);
            let listed: Vec<_> = listed
                .iter()
                .map(|message| match message {
                    ToInitiator::Listed(export) => {
                        let read_only = export.rights & right::READ_ONLY != 0;
                        (export.name.as_str(), read_only)
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(listed, names);
        }
        served.stop().await;
    });
}

#[test]
fn brp_answers_for_a_hidden_export_as_for_one_that_does_not_exist() {
    served(Protocol::Brp).run(async |served| {
        let bob = user(BOB);
        let (refused, bytes) = answers(served, &bob, Purpose::Open, "never").await;
        assert!(
            matches!(&refused[..], [ToInitiator::Refused(why)] if why.code == RefusalCode::UnknownExport)
        );
        for name in ["alone", "plain"] {
            let hidden = answers(served, &bob, Purpose::Open, name).await;
            assert_eq!(hidden.1, bytes, "byte by byte");
        }
        served.stop().await;
    });
}

#[test]
fn brp_lets_a_reader_read_and_refuses_changes() {
    served(Protocol::Brp).run(async |served| {
        let alice = session(served, user(ALICE), "both").await;
        alice
            .write(0, served.rt.pool().copy_of(&[7; 4096]))
            .await
            .unwrap();
        let bob = session(served, user(BOB), "").await;
        assert_eq!(bob.export().rights & right::READ_ONLY, right::READ_ONLY);
        let refused = bob.write(0, served.rt.pool().copy_of(&[8; 4096])).await;
        assert!(matches!(refused, Err(Error::Target(Status::ReadOnly))));
        assert_eq!(bob.read(0, 4096).await.unwrap().to_vec(), [7; 4096]);
        bob.flush().await.unwrap();
        alice.close().await;
        bob.close().await;
        served.stop().await;
    });
}

#[test]
fn who_may_see_nothing_is_told_nothing() {
    for protocol in [Protocol::Nbd, Protocol::Brp] {
        served(protocol).run(async |served| {
            let stranger = stream(served, &user(1002));
            let mut stranger = Raw::over(&served.rt, stranger);
            assert!(stranger.at_end().await);
            let mut statistics: Vec<(String, String, bimetal_block::Statistic)> = Vec::new();
            served.server.statistics(&mut statistics);
            let refused = statistics.iter().find(|(part, name, _)| {
                (part.as_str(), name.as_str()) == ("alone", "connections_refused")
            });
            assert!(matches!(
                refused,
                Some((_, _, bimetal_block::Statistic::Counter(1)))
            ));
            let told = served.rt.notices().take(served.rt.now());
            let lines: Vec<String> = told.iter().map(ToString::to_string).collect();
            assert!(
                matches!(&lines[..], [line] if line.contains("gives user 1002 no access")),
                "{lines:?}"
            );
            served.stop().await;
        });
    }
}
