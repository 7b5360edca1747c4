//! Reports of servers about themselves and others: INFO, and CLUSTER NODES. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// What INFO says: `field:value` lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info(BTreeMap<String, String>);

impl Info {
    /// Reads the text; what isn't a field is passed over.
    pub fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Self(fields.collect())
    }

    /// A field that isn't empty.
    pub fn text(&self, field: &str) -> Option<&str> {
        let value = self.0.get(field)?.as_str();
        (!value.is_empty()).then_some(value)
    }

    /// `standalone`, `cluster` or `sentinel`; Valkey has another name for the field.
    pub fn mode(&self) -> &str {
        let mode = self.text("redis_mode").or(self.text("server_mode"));
        mode.unwrap_or("standalone")
    }

    pub fn number(&self, field: &str) -> Option<u64> {
        self.text(field)?.parse().ok()
    }

    /// Whether a field is 1.
    pub fn is_on(&self, field: &str) -> bool {
        self.number(field) == Some(1)
    }

    /// The replicas that are connected, as their primary knows them.
    pub fn replicas(&self) -> Vec<ReplicaEntry> {
        let is_one = |name: &str| {
            let number = name.strip_prefix("slave");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let lines = self.0.iter().filter(|(name, _)| is_one(name));
        let offset = self.number("master_repl_offset");
        lines
            .filter_map(|(_, line)| ReplicaEntry::parse(line, offset))
            .collect()
    }
}

/// A replica, as its primary knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaEntry {
    pub host: String,
    pub port: u16,
    pub is_online: bool,
    /// How much it has not confirmed yet, in bytes.
    pub behind: Option<u64>,
    /// How long ago it last confirmed anything.
    pub last_heard: Option<Duration>,
}

impl ReplicaEntry {
    /// One that is known by its address only, `host:port`.
    pub fn at(place: &str) -> Option<Self> {
        let (host, port) = place.rsplit_once(':')?;
        Some(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse().ok().filter(|port| *port > 0)?,
            is_online: true,
            behind: None,
            last_heard: None,
        })
    }

    /// Reads `ip=10.0.0.7,port=6379,state=online,offset=1234,lag=0`.
    fn parse(line: &str, primary_offset: Option<u64>) -> Option<Self> {
        let field = |wanted: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(name, value)| (name == wanted).then_some(value))
        };
        let number = |wanted: &str| field(wanted)?.parse::<u64>().ok();
        Some(Self {
            host: field("ip")?.to_owned(),
            port: field("port")?.parse().ok()?,
            is_online: field("state") == Some("online"),
            behind: primary_offset
                .zip(number("offset"))
                .map(|(primary, replica)| primary.saturating_sub(replica)),
            last_heard: number("lag").map(Duration::from_secs),
        })
    }

    pub fn place(&self) -> String {
        address(&self.host, &self.port.to_string())
    }
}

/// An address as lists have it.
pub(super) fn address(host: &str, port: &str) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The primaries that CLUSTER NODES lists beside the one that answers, if they can be reached.
pub fn other_primaries(nodes: &str) -> Vec<ReplicaEntry> {
    // <id> <host>:<port>@<bus port>[,<name>] <flags> <id of the primary> ...
    let read = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (address, flags) = (words.next()?, words.next()?);
        let (host, port) = address.split('@').next()?.rsplit_once(':')?;
        let has = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
        let is_one = has("master") && !has("myself") && !flags.contains("fail");
        (is_one && !host.is_empty()).then_some(ReplicaEntry {
            host: host.to_owned(),
            port: port.parse().ok()?,
            is_online: true,
            behind: None,
            last_heard: None,
        })
    };
    nodes.lines().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_line_by_line_and_the_replicas_from_it() {
        let info = Info::parse(
            "# Replication\r\nrole:master\r\nconnected_slaves:2\r\nmaster_repl_offset:1000\r\n\
             slave0:ip=10.0.0.7,port=6379,state=online,offset=900,lag=1\r\n\
             slave1:ip=fe80::1,port=7,state=wait_bgsave,offset=0,lag=0\r\nexecutable:\r\n",
        );
        assert_eq!(info.text("role"), Some("master"));
        assert_eq!(info.text("executable"), None);
        assert_eq!(info.number("master_repl_offset"), Some(1000));
        let replicas = info.replicas();
        assert_eq!(replicas.len(), 2);
        assert_eq!(replicas[0].behind, Some(100));
        assert_eq!(replicas[0].last_heard, Some(Duration::from_secs(1)));
        assert!(replicas[0].is_online && !replicas[1].is_online);
        assert_eq!(replicas[1].place(), "[fe80::1]:7");
    }

    #[test]
    fn the_other_primaries_of_a_cluster_are_read() {
        let nodes = "aa 127.0.0.1:30004@31004,h4 slave bb 0 1 4 connected\n\
            cc 127.0.0.1:30002@31002,h2 master - 0 1 2 connected 5461-10922\n\
            dd 127.0.0.1:30003@31003 master,fail - 0 1 3 disconnected\n\
            ee :0@0 master,noaddr - 0 1 3 disconnected\n\
            bb 127.0.0.1:30001@31001 myself,master - 0 0 1 connected 0-5460\n";
        let found = other_primaries(nodes);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].place(), "127.0.0.1:30002");
    }
}
