//! JSON for programs, written field by field: the one serializer of `status` and `history`. The names are part of the
//! contract.

use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::duration::milliseconds;
use crate::protocol::Who;
use crate::report::{escaped_json, print, timestamp};

/// An object that is being written.
#[derive(Debug)]
pub struct Object<'a>(&'a mut Vec<u8>);

impl Object<'_> {
    fn key(&mut self, key: &str) {
        if !self.0.ends_with(b"{") {
            self.0.push(b',');
        }
        self.value(key);
        self.0.push(b':');
    }

    fn value(&mut self, value: impl Serialize) {
        // Memory takes everything.
        let _ = serde_json::to_writer(&mut *self.0, &value);
    }

    pub fn field(&mut self, key: &str, value: impl Serialize) {
        self.key(key);
        self.value(value);
    }

    /// Writes a field that is left out if it has no value.
    pub fn optional(&mut self, key: &str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.field(key, value);
        }
    }

    /// Writes a moment, in milliseconds since 1970.
    pub fn time(&mut self, key: &str, ms: Option<u64>) {
        self.field(key, ms.and_then(timestamp));
    }

    pub fn duration(&mut self, key: &str, duration: Option<Duration>) {
        self.field(key, duration.map(milliseconds));
    }

    /// Writes an object in the object.
    pub fn object(&mut self, key: &str, write: impl Fn(&mut Object)) {
        self.key(key);
        write_objects(self.0, [()], |object, ()| write(object));
    }

    /// Writes an array of objects.
    pub fn list<T>(
        &mut self,
        key: &str,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Object, T),
    ) {
        self.key(key);
        self.0.push(b'[');
        write_objects(self.0, items, write);
        self.0.push(b']');
    }

    /// Writes a client; without the command and the link of one that has only acted on the lock.
    pub fn client(&mut self, who: Option<&Who>, has_command: bool, has_link: bool) {
        self.optional("who", who.and_then(|who| who.known_as.as_ref()));
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

fn write_objects<T>(
    text: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut Object, T),
) {
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            text.push(b',');
        }
        text.push(b'{');
        write(&mut Object(text), item);
        text.push(b'}');
    }
}

/// An array that is printed in parts, as it may be long.
#[derive(Debug, Default)]
pub struct Array {
    is_begun: bool,
}

impl Array {
    /// Number of objects that are printed at once.
    const PART: usize = 500;

    /// Prints objects; false if the reader has gone away.
    pub fn print<T>(&mut self, items: &[T], write: impl Fn(&mut Object, &T)) -> io::Result<bool> {
        for part in items.chunks(Self::PART) {
            if !print(&self.part(part, &write))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Prints the end of the array.
    pub fn end(&self) -> io::Result<bool> {
        print(if self.is_begun { "]\n" } else { "[]\n" })
    }

    /// Returns objects as text, with what separates them from those before.
    fn part<T>(&mut self, items: &[T], write: impl Fn(&mut Object, &T)) -> String {
        let mut text = vec![if self.is_begun { b',' } else { b'[' }];
        self.is_begun = true;
        write_objects(&mut text, items, write);
        escaped_json(&String::from_utf8_lossy(&text)).into_owned()
    }

    /// Returns a whole array as text.
    #[cfg(any(test, fuzzing))]
    pub fn text<T>(items: &[T], write: impl Fn(&mut Object, &T)) -> String {
        Self::default().part(items, write) + "]\n"
    }
}
