//! JSON for programs, written field by field: `status` and `history`
//! share this serializer. The field names are part of the contract.

use std::io;

use serde::Serialize;

use crate::protocol::Who;
use crate::report::{escaped_json, print};

/// A JSON object under construction: the text of its fields so far.
#[derive(Debug, Default)]
pub struct Object(String);

impl Object {
    fn text(&mut self, key: &str, value: &str) {
        let comma = if self.0.is_empty() { "" } else { "," };
        self.0.extend([comma, "\"", key, "\":", value]);
    }

    pub fn field(&mut self, key: &str, value: impl Serialize) {
        // Writing to memory can't fail.
        let value = serde_json::to_string(&value).unwrap_or_default();
        self.text(key, &value);
    }

    /// Adds an object as a field; null if there is none.
    pub fn object(&mut self, key: &str, object: Option<Self>) {
        let text = object.map_or("null".into(), |Self(fields)| format!("{{{fields}}}"));
        self.text(key, &text);
    }

    /// Adds an array of objects as a field.
    pub fn list(&mut self, key: &str, objects: impl Iterator<Item = Self>) {
        self.text(key, "[");
        append(&mut self.0, objects);
        self.0.push(']');
    }

    /// Returns an object with the fields of a client that has only acted on the lock.
    pub fn of(who: &Who, has_link: bool) -> Self {
        let mut json = Self::default();
        json.client(Some(who), false, has_link);
        json
    }

    /// Adds the fields of a client.
    pub fn client(&mut self, who: Option<&Who>, has_command: bool, has_link: bool) {
        if let Some(name) = who.and_then(|who| who.known_as.as_ref()) {
            self.field("who", name);
        }
        self.field("host", who.map(|who| &who.host));
        self.field("user", who.map(|who| &who.user));
        self.field("pid", who.map(|who| who.pid));
        if has_command {
            self.field("command", who.map(|who| &who.command));
        }
        self.field("reason", who.and_then(|who| who.reason.as_ref()));
        if has_link {
            self.field("url", who.and_then(|who| who.url.as_ref()));
        }
    }
}

/// Appends the elements of an array, which may be large.
fn append(text: &mut String, objects: impl Iterator<Item = Object>) {
    for (at, Object(fields)) in objects.enumerate() {
        text.extend([if at == 0 { "{" } else { ",{" }, &fields, "}"]);
    }
}

/// Number of objects to print at once.
const PART: usize = 500;

/// Prints an array of objects in parts, because it may be long. Returns false if the reader has gone away.
pub fn print_array<T>(items: &[T], object: impl Fn(&T) -> Object) -> io::Result<bool> {
    let mut start = "[";
    for part in items.chunks(PART) {
        let mut text = start.to_owned();
        append(&mut text, part.iter().map(&object));
        if !print(&escaped_json(&text))? {
            return Ok(false);
        }
        start = ",";
    }
    print(if items.is_empty() { "[]\n" } else { "]\n" })
}

/// Returns the text of a short array.
#[cfg(test)]
pub fn array<T>(items: &[T], object: impl Fn(&T) -> Object) -> String {
    let mut text = String::new();
    append(&mut text, items.iter().map(object));
    format!("[{}]\n", escaped_json(&text))
}
