//! The calls of scripts and their answers, as far as the promises tell them apart.

use redis::Value;

use super::plan::ms;
use super::promises::Act;
use super::view::text;
use crate::protocol::answer;
use crate::protocol::guard;
use crate::protocol::model::fake::name_of;
use crate::protocol::scripts::unexpected_reply;
use crate::protocol::{Acquired, Error, LeaseState, Released};
use crate::redis::call::Call;

/// What a client does with a call of its own.
pub fn act(client: usize, call: &Call) -> Act {
    match name_of(call.script) {
        Some("take" | "acquire") => Act::Acquire {
            client,
            queues: !call.args[7].is_empty(),
        },
        Some("renew" | "prolong") => Act::Renew(client),
        Some("free" | "release") => Act::Release {
            client,
            keeps: call.args[6] != b"0",
        },
        Some("guard") => Act::Guard(client),
        Some("leave") => Act::Leave(client),
        _ => Act::Check(client),
    }
}

/// Whether this is a request of a waiter that knows its ticket.
pub fn tells_ticket(call: &Call) -> bool {
    name_of(call.script) == Some("acquire") && !call.args[8].is_empty()
}

/// How a hold has ended, as its release says: empty where nothing was done under it.
pub fn outcome(call: &Call) -> Option<&[u8]> {
    matches!(name_of(call.script), Some("free" | "release")).then(|| call.args[5].as_slice())
}

/// What was answered, as redlock reads it.
#[derive(Clone, Debug)]
pub enum Answer {
    Acquired(Acquired),
    /// To a renewal, a check or a guard.
    Lease(LeaseState),
    /// To a short script: nothing was changed.
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
    Ok(match name_of(call.script) {
        Some("take" | "free") if value == Value::Int(0) => Answer::Unsure,
        Some("take" | "acquire") => Answer::Acquired(answer::acquired(value)?),
        Some("renew") => Answer::Lease(answer::renewed(value)?),
        Some("prolong") => {
            let ttl = ms(text(&call.args[1]).parse().expect("a ttl"));
            answer::prolonged(&value, ttl)?.map_or(Answer::Unsure, Answer::Lease)
        }
        Some("check") => Answer::Lease(answer::checked(value)?),
        Some("guard") => Answer::Lease(guard::extended(value)?),
        Some("free" | "release") => Answer::Released(answer::released(value)?),
        Some(_) if !matches!(&value, Value::Array(all) if !all.is_empty()) => {
            return Err(unexpected_reply(&[value]));
        }
        _ => Answer::Other,
    })
}
