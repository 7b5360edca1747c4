//! A server that refuses, at each step of the fuzz, in memory: one without free memory, and one that takes no
//! writes (a replica, or a primary that can't write to its disk). What is refused has done nothing; only what is
//! new is refused for want of memory; and no grant is sent that wasn't written.

use crate::protocol::model::fuzz::memory::Memory;
use crate::protocol::model::fuzz::plan::Plan;
use crate::protocol::model::fuzz::scripts::Call;
use crate::protocol::model::fuzz::server::{Called, Simulated};
use crate::protocol::model::fuzz::world::World;
use crate::protocol::model::redis::READONLY;
use crate::protocol::model::support::asked;
use crate::protocol::model::support::lua::SCRIPTS;

/// How many runs of the fuzz are tried; `REFUSALS` is another number.
const SEEDS: u64 = 4;

/// A server on which each call is first refused, which is then as if it had not been, and then carried out.
struct Refusing {
    memory: Memory,
    refused: usize,
    accepted: usize,
}

impl Refusing {
    fn new() -> Self {
        Self {
            memory: Memory::new(SCRIPTS.into()),
            refused: 0,
            accepted: 0,
        }
    }

    fn without_memory(&mut self, call: &Call) {
        let may_be_refused = self.may_be_refused(call);
        let before = self.memory.data.clone();
        self.memory.moment.is_full = true;
        let (answer, _, messages) = self.memory.call(call);
        self.memory.moment.is_full = false;
        match answer {
            Ok(_) => self.accepted += 1,
            Err(error) => {
                assert!(error.contains("OOM"), "{error}: {call:?}");
                assert!(may_be_refused, "refused: {call:?}");
                assert_eq!(
                    self.memory.data, before,
                    "done by what was refused: {call:?}"
                );
                assert!(
                    messages.is_empty(),
                    "sent by what was refused: {messages:?} {call:?}"
                );
                self.refused += 1;
            }
        }
        self.memory.data = before;
    }

    fn without_writes(&mut self, call: &Call) {
        let before = self.memory.data.clone();
        self.memory.moment.refuses_writes = Some(READONLY);
        let (_, _, messages) = self.memory.call(call);
        self.memory.moment.refuses_writes = None;
        let is_grant = |text: &String| text.starts_with("granted ");
        let is_sent = messages.iter().any(|(_, text)| is_grant(text));
        assert!(!is_sent, "granted, and not written: {messages:?} {call:?}");
        assert_eq!(self.memory.data, before, "written: {call:?}");
    }

    /// What takes a lock or a new place in the queue, and what freezes. All else frees, extends or hands on, or
    /// looks only.
    fn may_be_refused(&self, call: &Call) -> bool {
        let view = self.memory.view();
        match (call.script, call.args.get(3)) {
            (None | Some("freeze"), _) => true,
            (Some("acquire"), Some(token)) => {
                !view.held().contains_key(token) && !view.waits(token)
            }
            _ => false,
        }
    }
}

impl Simulated for Refusing {
    fn set_clock(&mut self, to: i64) {
        self.memory.set_clock(to);
        // What has expired is gone before anything is compared.
        self.memory.data.forget_expired(to.div_euclid(1000));
    }

    fn clear(&mut self) {
        self.memory.clear();
    }

    fn call(&mut self, call: &Call) -> Called {
        self.without_memory(call);
        self.without_writes(call);
        self.memory.call(call)
    }

    fn size(&mut self) -> Vec<String> {
        self.memory.size()
    }

    fn listen(&mut self, channel: &str) {
        self.memory.listen(channel);
    }

    fn stop_listening(&mut self, channel: &str) {
        self.memory.stop_listening(channel);
    }
}

#[test]
fn what_a_server_refuses_has_done_nothing_and_what_is_held_is_never_refused() {
    let seeds = asked("REFUSALS").unwrap_or(SEEDS);
    let mut server = Refusing::new();
    for seed in 1..=seeds {
        let plan = Plan::of(seed);
        if let Err(failure) = World::run(&mut server, &plan, false) {
            panic!("seed {seed}: {}", failure.broken.promise);
        }
    }
    let Refusing {
        refused, accepted, ..
    } = server;
    // Where nothing is refused, or all is, nothing is tried.
    assert!(
        refused > 100 && accepted > 100,
        "{refused} refused, {accepted} accepted"
    );
}
