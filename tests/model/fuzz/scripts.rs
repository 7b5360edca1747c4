//! The calls of scripts and their answers, as far as the promises tell them apart.

use redis::Value;

use super::plan::ms;
use super::promises::Act;
use super::view::text;
use crate::protocol::answer;
use crate::protocol::guard;
use crate::protocol::scripts::{
    ACQUIRE, CHECK, GUARD, LEAVE, PROLONG, RELEASE, RENEW, Script, unexpected_reply,
};
use crate::protocol::{Acquired, Error, LeaseState, Released};
use crate::redis::call::Call;

/// What a client does with a call of its own.
pub fn act(client: usize, call: &Call) -> Act {
    if is(call, &ACQUIRE) {
        let queues = !call.args[7].is_empty();
        Act::Acquire { client, queues }
    } else if is(call, &RENEW) || is(call, &PROLONG) {
        Act::Renew(client)
    } else if is(call, &RELEASE) {
        let keeps = call.args[6] != b"0";
        Act::Release { client, keeps }
    } else if is(call, &GUARD) {
        Act::Guard(client)
    } else if is(call, &LEAVE) {
        Act::Leave(client)
    } else {
        Act::Check(client)
    }
}

fn is(call: &Call, script: &Script) -> bool {
    call.script.hash == script.hash
}

/// Whether this is a request of a waiter that knows its ticket.
pub fn tells_ticket(call: &Call) -> bool {
    is(call, &ACQUIRE) && !call.args[8].is_empty()
}

/// How a hold has ended, as its release says: empty where nothing was done under it.
pub fn outcome(call: &Call) -> Option<&[u8]> {
    is(call, &RELEASE).then(|| call.args[5].as_slice())
}

/// What was answered, as redlock reads it.
#[derive(Clone, Debug)]
pub enum Answer {
    Acquired(Acquired),
    /// To a renewal, a check or a guard.
    Lease(LeaseState),
    /// To a renewal by the short script: nothing was changed.
    Unsure,
    Released(Released),
    /// To what people do, and to other clients.
    Other,
}

/// Reads an answer.
///
/// # Errors
/// It has no exact meaning.
pub fn read(call: &Call, value: Value) -> Result<Answer, Error> {
    if is(call, &ACQUIRE) {
        answer::acquired(value).map(Answer::Acquired)
    } else if is(call, &RENEW) {
        answer::renewed(value).map(Answer::Lease)
    } else if is(call, &PROLONG) {
        let ttl = ms(text(&call.args[1]).parse().expect("a ttl"));
        let state = answer::prolonged(&value, ttl)?;
        Ok(state.map_or(Answer::Unsure, Answer::Lease))
    } else if is(call, &CHECK) {
        answer::checked(value).map(Answer::Lease)
    } else if is(call, &GUARD) {
        guard::extended(value).map(Answer::Lease)
    } else if is(call, &RELEASE) {
        answer::released(value).map(Answer::Released)
    } else if call.script.hash.is_empty() || matches!(&value, Value::Array(all) if !all.is_empty())
    {
        Ok(Answer::Other)
    } else {
        Err(unexpected_reply(&[value]))
    }
}
