//! A server's report about itself: INFO, and settings from CONFIG GET. Pure.

use std::collections::BTreeMap;

/// Fields from `field:value` lines.
#[derive(Default)]
pub struct Info(BTreeMap<String, String>);

impl Info {
    /// Adds the fields of a text. Ignores other lines.
    pub fn add(&mut self, text: &str) {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        self.0.extend(fields);
    }

    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    /// Returns a field's number, or 0 if there is none.
    pub fn number(&self, field: &str) -> u64 {
        let number = self.text(field).and_then(|text| text.parse().ok());
        number.unwrap_or(0)
    }

    /// Returns the addresses of the connected replicas, and whether each is in
    /// sync. An example of a field is `slave0:ip=h,port=1,state=online,lag=0`.
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
