//! A server in memory, which runs the scripts that it is given.

use std::collections::BTreeMap;

use super::server::START;
use crate::protocol::model::redis::{Data, Interpreter, Moment};

/// Scripts by their names.
pub type Sources = BTreeMap<&'static str, &'static str>;

pub struct Memory {
    pub sources: Sources,
    pub interpreter: Interpreter,
    pub data: Data,
    pub moment: Moment,
}

impl Memory {
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            interpreter: Interpreter::default(),
            data: Data::default(),
            moment: Moment::at(START),
        }
    }

    /// Forgets everything, subscriptions included.
    pub fn clear(&mut self) {
        self.data = Data::default();
        self.moment = Moment::at(START);
    }
}
