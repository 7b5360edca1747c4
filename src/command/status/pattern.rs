//! A pattern for names.

use crate::lock::Name;
use crate::pattern::{is_pattern, matches};

/// A pattern: `*` stands for any text, `?` for one character.
#[derive(Clone, Debug)]
pub struct Pattern(Name);

impl Pattern {
    /// The pattern, or the name if it is none.
    pub fn of(name: Name) -> Result<Self, Name> {
        if is_pattern(name.as_str()) {
            Ok(Self(name))
        } else {
            Err(name)
        }
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &Name) -> bool {
        matches(self.as_str(), name.as_str())
    }
}
