//! Access control of exports: the rules of a configuration, applied to the identity of a client.
//!
//! The rights of a client are decided once, before the first answer to the client. An export that
//! is hidden from a client must look to that client as if it did not exist.

use std::fmt::{self, Display, Formatter};

use bimetal_proto::Escaped;
use bimetal_rt::net::Peer;
use serde::Deserialize;

/// Rights of a client to an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// No access; the export is not even visible.
    Hidden,
    /// Every operation that changes nothing.
    ReadOnly,
    /// Every operation.
    ReadWrite,
}

/// The clients that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Every client.
    Everybody,
    /// Processes of a user of the local machine, by user ID.
    User(u32),
    /// Processes in a group of the local machine, by group ID.
    Group(u32),
    /// Clients whose certificate has this name.
    Name(String),
}

/// One line of a list of rules.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RuleKeys")]
pub struct Rule {
    /// The clients that the rule applies to.
    pub who: Who,
    /// The rights that these clients have.
    pub rights: Rights,
}

/// Keys of a rule, as written in the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleKeys {
    uid: Option<u32>,
    gid: Option<u32>,
    name: Option<String>,
    rights: Rights,
}

impl TryFrom<RuleKeys> for Rule {
    type Error = &'static str;

    fn try_from(keys: RuleKeys) -> Result<Rule, &'static str> {
        let who = match (keys.uid, keys.gid, keys.name) {
            (None, None, None) => Who::Everybody,
            (Some(uid), None, None) => Who::User(uid),
            (None, Some(gid), None) => Who::Group(gid),
            (None, None, Some(name)) => Who::Name(name),
            _ => return Err("a rule has one of `uid`, `gid` and `name`, or none"),
        };
        let rights = keys.rights;
        Ok(Rule { who, rights })
    }
}

/// Identity of a client, as the kernel or a certificate authority confirms it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// A process on the local machine, identified by the kernel.
    Local(Peer),
    /// A client that has proved that it holds the private key of a certificate with these names.
    /// The certificate was issued by an authority that the configuration trusts.
    Certified(Vec<String>),
    /// An unidentified client that has connected to an address that only the local machine can
    /// reach.
    Unknown,
}

impl Display for Client {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Client::Local(peer) => write!(f, "user {}", peer.uid),
            Client::Certified(names) if names.is_empty() => {
                f.write_str("a certificate without a name")
            }
            Client::Certified(names) => {
                write!(f, "the certificate of {}", Escaped(&names.join(", ")))
            }
            Client::Unknown => f.write_str("an unidentified client"),
        }
    }
}

impl Client {
    fn is(&self, who: &Who) -> bool {
        match (who, self) {
            (Who::Everybody, _) => true,
            (Who::User(uid), Client::Local(peer)) => peer.uid == *uid,
            (Who::Group(gid), Client::Local(peer)) => peer.gids.contains(gid),
            (Who::Name(name), Client::Certified(names)) => {
                names.iter().any(|own| own.eq_ignore_ascii_case(name))
            }
            _ => false,
        }
    }

    /// Returns the rights of the client to an export without rules. A local process of a user other
    /// than root and the server's own user has no rights. Every other client has all rights.
    fn rights_without_rules(&self) -> Rights {
        match self {
            Client::Local(peer) if !peer.is_own_user && peer.uid != 0 => Rights::Hidden,
            Client::Local(_) | Client::Certified(_) | Client::Unknown => Rights::ReadWrite,
        }
    }

    /// Returns the rights of the client under `rules`: the rights in the first rule that applies to
    /// the client, or none if no rule applies. If `rules` is `None`, the default rights apply.
    pub(crate) fn rights(&self, rules: Option<&[Rule]>) -> Rights {
        let Some(rules) = rules else {
            return self.rights_without_rules();
        };
        let about = rules.iter().find(|rule| self.is(&rule.who));
        about.map_or(Rights::Hidden, |rule| rule.rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(uid: u32, gids: &[u32], is_own_user: bool) -> Client {
        Client::Local(Peer {
            uid,
            gids: gids.to_vec(),
            is_own_user,
        })
    }

    fn rule(who: Who, rights: Rights) -> Rule {
        Rule { who, rights }
    }

    #[test]
    fn without_rules_other_users_of_the_machine_see_nothing() {
        for (client, rights) in [
            (local(1000, &[1000], true), Rights::ReadWrite),
            (local(0, &[0], false), Rights::ReadWrite),
            (local(1001, &[1000, 0], false), Rights::Hidden),
            (Client::Certified(Vec::new()), Rights::ReadWrite),
            (Client::Unknown, Rights::ReadWrite),
        ] {
            assert_eq!(client.rights(None), rights, "{client:?}");
        }
    }

    #[test]
    fn the_first_rule_that_is_about_a_client_counts_and_without_one_nothing_is_allowed() {
        let rules = [
            rule(Who::User(1001), Rights::Hidden),
            rule(Who::Group(50), Rights::ReadOnly),
            rule(Who::User(1000), Rights::ReadWrite),
        ];
        for (client, rights) in [
            (local(1001, &[50], false), Rights::Hidden),
            (local(1000, &[50], true), Rights::ReadOnly),
            (local(1000, &[1000], true), Rights::ReadWrite),
            (local(1002, &[1000, 50], false), Rights::ReadOnly),
            (local(0, &[0], true), Rights::Hidden),
            (Client::Unknown, Rights::Hidden),
        ] {
            assert_eq!(client.rights(Some(&rules)), rights, "{client:?}");
        }
        let certified = |names: &[&str]| {
            Client::Certified(names.iter().map(|name| (*name).to_owned()).collect())
        };
        let named = [rule(Who::Name("box.example".to_owned()), Rights::ReadWrite)];
        for (names, rights) in [
            (&["other", "Box.example"][..], Rights::ReadWrite),
            (&["a.box.example", "box.example.org", "*"], Rights::Hidden),
            (&[], Rights::Hidden),
        ] {
            assert_eq!(certified(names).rights(Some(&named)), rights, "{names:?}");
        }
        let everybody = [rule(Who::Everybody, Rights::ReadOnly)];
        assert_eq!(Client::Unknown.rights(Some(&everybody)), Rights::ReadOnly);
    }
}
