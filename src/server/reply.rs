//! The fields of replies: numbers within bounds, text, and the error for anything else.

use std::time::Duration;

use redis::Value;

use super::error::{Error, ErrorKind, quoted};

/// Largest number that redlock's scripts return exactly. Above it, Lua's numbers have gaps. Microseconds since 1970 are
/// below it until the year 2255, milliseconds for much longer.
pub const MAX_EXACT_INT: u64 = 1 << 53;

pub fn array(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(fields) => Ok(fields),
        other => Err(unexpected_reply(&[other])),
    }
}

/// Returns the error for an answer of an unexpected form.
pub fn unexpected_reply(fields: &[Value]) -> Error {
    let shape = quoted(&fields.iter().map(shape).collect::<Vec<_>>().join(", ")).into_owned();
    Error::new(
        ErrorKind::Unreachable,
        format!("Redis sent an answer of a shape that redlock doesn't know: [{shape}]"),
    )
}

/// Returns a field as a message shows it: enough to debug the answer, without anything that a client has stored.
fn shape(field: &Value) -> String {
    match field {
        Value::Nil => "nil".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => format!("{} bytes", bytes.len()),
        Value::Array(fields) => format!("{} fields", fields.len()),
        Value::Okay | Value::SimpleString(_) | Value::VerbatimString { .. } => "a word".into(),
        Value::Map(_) | Value::Attribute { .. } | Value::Set(_) | Value::Push { .. } => {
            "a collection".into()
        }
        Value::ServerError(_) => "an error".into(),
        // The crate may add kinds of values.
        _ => "another value".into(),
    }
}

/// Returns a field's text, or an empty one if it isn't text. Never fails, because other clients' bytes may be anything.
pub fn lossy_text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

/// Returns a whole number from 0 to `most`, from an integer or from digits.
pub fn number_to(most: u64, value: &Value) -> Result<u64, Error> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) if digits.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse().ok())
        }
        _ => None,
    };
    number
        .filter(|number| *number <= most)
        .ok_or_else(|| unexpected_reply(std::slice::from_ref(value)))
}

/// Returns a fencing token, a ticket or a moment.
pub fn number(value: &Value) -> Result<u64, Error> {
    number_to(MAX_EXACT_INT, value)
}

/// Returns a number of holders, waiters and the like.
pub fn count(value: &Value) -> Result<u32, Error> {
    let most = 1_000_000_000_u32;
    Ok(u32::try_from(number_to(most.into(), value)?).unwrap_or(most))
}

/// Returns a flag, which is 1 or 0.
pub fn flag(value: &Value) -> Result<bool, Error> {
    Ok(number_to(1, value)? == 1)
}

/// Returns a remaining time in the format of PTTL, or `None` for a key without expiry. The key may be another client's.
pub fn milliseconds(value: &Value) -> Result<Option<Duration>, Error> {
    match value {
        Value::Int(-1) => Ok(None),
        other => {
            let most = i64::MAX.unsigned_abs();
            Ok(Some(Duration::from_millis(number_to(most, other)?)))
        }
    }
}

/// Returns text that may be absent.
pub fn some_text(value: &Value) -> Result<Option<&[u8]>, Error> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        other => Err(unexpected_reply(std::slice::from_ref(other))),
    }
}

/// Returns a named field of an answer, which is a map or a list of alternating names and values.
pub fn field(answer: &Value, name: &str) -> Option<String> {
    let is_it = |key: &Value| lossy_text(key) == name;
    match answer {
        Value::Map(pairs) => {
            let pair = pairs.iter().find(|(key, _)| is_it(key));
            pair.map(|(_, value)| lossy_text(value))
        }
        Value::Array(fields) => {
            let pair = fields.chunks_exact(2).find(|pair| is_it(&pair[0]));
            pair.map(|pair| lossy_text(&pair[1]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name_in_a_map_and_in_a_list() {
        let text = |text: &str| Value::BulkString(text.into());
        let words = ["role", "master", "id", "7"].map(text);
        let [role, master, id, seven] = words.clone();
        let map = Value::Map(vec![(role, master), (id, seven)]);
        for answer in [map, Value::Array(words.to_vec())] {
            assert_eq!(field(&answer, "id").as_deref(), Some("7"));
            assert_eq!(field(&answer, "master"), None);
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn absent_text_is_none_and_other_values_are_no_text() {
        assert_eq!(some_text(&Value::Nil).ok(), Some(None));
        assert_eq!(some_text(&text("a")).ok(), Some(Some(&b"a"[..])));
        assert_eq!(some_text(&Value::Int(1)).ok(), None);
        assert_eq!(lossy_text(&text("a")), "a");
        assert_eq!(lossy_text(&Value::SimpleString("b".into())), "b");
        assert_eq!(lossy_text(&Value::Int(1)), "");
    }

    #[test]
    fn an_answer_that_does_not_fit_is_described_without_what_a_client_has_stored() {
        let answer = [
            Value::Nil,
            Value::Int(5),
            text("secret"),
            Value::Array(vec![Value::Nil; 2]),
            Value::Okay,
            Value::SimpleString("secret".into()),
            Value::Set(Vec::new()),
            Value::Boolean(true),
            redis::parse_redis_value(b"-ERR secret\r\n").unwrap(),
        ];
        let error = unexpected_reply(&answer);
        assert_eq!(error.kind, ErrorKind::Unreachable);
        let message = error.to_string();
        let expected =
            "[nil, 5, 6 bytes, 2 fields, a word, a word, a collection, another value, an error]";
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("secret"), "{message}");
        assert!(array(Value::Int(1)).is_err());
        assert_eq!(array(Value::Array(Vec::new())).unwrap(), []);
    }
}
