//! Servers in memory that refuse each call of a simulation: one without free memory, and one that accepts no writes (like a
//! replica). A refused call must have no effect; a full server may refuse only new things; and no grant may be sent that wasn't
//! written.

use std::cell::RefCell;
use std::rc::Rc;

use redis::Value;

use super::promises::Broken;
use super::promises::calls::{Seen, Witness};
use super::redis::data::Fields;
use super::redis::{Data, Evaluated, Interpreter, Moment, READONLY};
use super::simulate::{MINUTES, Server, SharedWitness, lock, simulate};
use super::support::asked;
use super::view::{StatusCommand, text};
use crate::protocol::scripts::{ACQUIRE, FREEZE, GUARD, TAKE};

/// Number of seeds, unless `REFUSALS` is set.
const SEEDS: u64 = 4;

/// A server that repeats each call after its execution, and refuses it.
#[derive(Default)]
struct Refusing {
    interpreter: Interpreter,
    refused: usize,
    accepted: usize,
}

impl Refusing {
    /// Repeats a call under other circumstances. Returns its result, and whether the data stayed the same.
    fn again(&self, seen: &Seen, moment: &Moment) -> (Evaluated, bool) {
        let mut data = before(seen);
        let (interpreter, call) = (&self.interpreter, seen.call);
        let done = interpreter.eval(
            &mut data,
            moment,
            call.script.source,
            &call.keys,
            &call.args,
        );
        let is_same = data == before(seen);
        (done, is_same)
    }

    fn without_memory(&mut self, seen: &Seen) {
        let moment = Moment {
            is_full: true,
            ..seen.moment.clone()
        };
        let (done, is_same) = self.again(seen, &moment);
        let Value::ServerError(error) = &done.answer else {
            self.accepted += 1;
            return;
        };
        let step = seen.told();
        assert_eq!(error.code(), "OOM", "{error:?}: {step}");
        assert!(may_be_refused(seen), "refused: {step}");
        assert!(is_same, "done by what was refused: {step}");
        assert!(done.heard.is_empty(), "sent by what was refused: {step}");
        self.refused += 1;
    }

    fn without_writes(&mut self, seen: &Seen) {
        let moment = Moment {
            refuses_writes: Some(READONLY),
            ..seen.moment.clone()
        };
        let (done, is_same) = self.again(seen, &moment);
        let is_grant = |(_, message): &(_, Vec<u8>)| message.starts_with(b"granted ");
        let is_sent = done.heard.iter().any(is_grant);
        assert!(!is_sent, "granted, and not written: {}", seen.told());
        assert!(is_same, "written: {}", seen.told());
    }
}

/// Returns the data before a call, without expired keys.
fn before(seen: &Seen) -> Data {
    let mut data = seen.before.clone();
    data.forget_expired(seen.moment.now_ms());
    data
}

/// Returns true for a call that takes a lock or a new place in the queue, admits a new guard, or freezes. All other calls free,
/// extend, hand over or only read.
fn may_be_refused(seen: &Seen) -> bool {
    let (call, hash) = (seen.call, seen.call.script.hash);
    let view = StatusCommand::of(seen.before, &lock().keys, seen.moment.now_ms());
    let is_new = |token: &str| !view.held.contains_key(token) && !view.waits(token);
    let guards = || {
        let now_ms = seen.moment.now_ms();
        seen.before.kind::<Fields>(now_ms, &call.keys[10])
    };
    let is_new_guard = |id: &[u8]| guards().is_none_or(|guards| !guards.contains_key(id));
    hash.is_empty()
        || hash == FREEZE.hash
        || [TAKE.hash, ACQUIRE.hash].contains(&hash) && is_new(&text(&call.args[3]))
        || hash == GUARD.hash && is_new_guard(&call.args[4])
}

impl Witness for Refusing {
    fn sees(&mut self, seen: &Seen) -> Result<(), Broken> {
        self.without_memory(seen);
        self.without_writes(seen);
        Ok(())
    }
}

#[test]
fn a_refused_call_has_no_effect_and_holders_are_never_refused() {
    let seeds = asked("REFUSALS").unwrap_or(SEEDS);
    let refusing = Rc::<RefCell<Refusing>>::default();
    for seed in 1..=seeds {
        let witness = Rc::clone(&refusing) as SharedWitness;
        if let Err(broken) = simulate(seed, MINUTES, &Server::default(), Some(witness)) {
            panic!("seed {seed}: {broken}");
        }
    }
    let Refusing {
        refused, accepted, ..
    } = *refusing.borrow();
    // The test is meaningful only if some calls are refused and others aren't.
    assert!(
        refused > 100 && accepted > 100,
        "{refused} refused, {accepted} accepted"
    );
}
