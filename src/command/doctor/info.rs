//! A server's report of itself: INFO, with settings from CONFIG GET. Pure.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Fields of `field:value` lines.
#[derive(Default)]
pub struct Info(BTreeMap<String, String>);

impl Info {
    /// Adds the fields of a text; ignores lines that aren't fields.
    pub fn add(&mut self, text: &str) {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        self.0.extend(fields);
    }

    /// Returns a field, even if it is empty.
    pub fn raw(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    /// Returns a field that isn't empty.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.raw(field).filter(|value| !value.is_empty())
    }

    pub fn number<T: FromStr>(&self, field: &str) -> Option<T> {
        self.text(field)?.parse().ok()
    }

    pub fn is_on(&self, field: &str) -> bool {
        self.text(field) == Some("1")
    }

    /// Returns the addresses of the connected replicas, and whether each is in sync:
    /// `slave0:ip=h,port=1,state=online,lag=0`.
    pub fn replicas(&self) -> Vec<(String, bool)> {
        let lines = self.0.iter().filter(|(name, _)| name.starts_with("slave"));
        let replica = |(_, line): (_, &String)| {
            let (host, rest) = line.strip_prefix("ip=")?.split_once(",port=")?;
            let (port, rest) = rest.split_once(',')?;
            Some((format!("{host}:{port}"), rest.starts_with("state=online")))
        };
        lines.filter_map(replica).collect()
    }
}
