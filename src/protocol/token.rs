//! The token of a hold: the secret by which a lock is renewed, checked and released.

use std::fmt;

use sha1_smol::Sha1;

use super::who::Who;
use crate::server::error::{Error, ErrorKind};

/// The token of a hold. Its `Debug` output doesn't reveal it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

/// Length limit of any client's token, in bytes; redlock's have about a hundred.
const LONGEST: usize = 1024;

impl Token {
    /// Returns a fresh token: 128 random bits, then host and process, so that `redis-cli GET` names the
    /// owner.
    pub(super) fn new(who: &Who) -> Result<Self, Error> {
        let token = format!("{:032x}:{}:{}", random_bits()?, who.host, who.pid);
        Ok(Self(token.into()))
    }

    /// Reads a token from an environment variable or a file, without white space at its end, because a file
    /// ends with a newline. Returns `None` if there is nothing else.
    pub fn read(mut text: Vec<u8>) -> Option<Self> {
        let end = text.trim_ascii_end().len();
        text.truncate(end);
        (!text.is_empty()).then_some(Self(text))
    }

    /// Returns the token itself, for Redis and for the environment of a job.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if this token was made for this process.
    pub fn is_of(&self, who: &Who) -> bool {
        let process = format!(":{}:{}", who.host, who.pid);
        self.0.ends_with(process.as_bytes())
    }

    /// Returns the public id: the start of the token's SHA-1, which doesn't reveal it. Empty if the text is
    /// too long to be the token of a lock.
    pub fn id(&self) -> String {
        if self.0.len() > LONGEST {
            return String::new();
        }
        let mut digits = Sha1::from(&self.0).digest().to_string();
        digits.truncate(12);
        digits
    }
}

/// Returns 128 random bits.
pub(super) fn random_bits() -> Result<u128, Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("no random numbers: {error}")))?;
    Ok(u128::from_be_bytes(random))
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_without_the_end_of_its_line_and_never_shown() {
        let token = Token::read(b"s3cret \xff\r\n".to_vec()).unwrap();
        assert_eq!(token.as_bytes(), b"s3cret \xff");
        assert_eq!(format!("{token:?}"), "Token");
        assert_eq!(Token::read(b" \n".to_vec()), None);
    }

    #[test]
    fn each_token_is_another_one_and_is_of_its_process() {
        let who = Who {
            host: "h".into(),
            pid: 7,
            ..Who::default()
        };
        let [one, other] = [(), ()].map(|()| Token::new(&who).unwrap());
        assert_ne!(one, other);
        let neighbour = Who {
            pid: 17,
            ..who.clone()
        };
        assert!(one.is_of(&who) && !one.is_of(&neighbour));
    }

    #[test]
    fn an_id_is_the_start_of_the_hash() {
        let id = |text: &[u8]| Token::read(text.to_vec()).unwrap().id();
        assert_eq!(id(b"abc"), "a9993e364706");
        assert_eq!(id(&[b'x'; LONGEST]).len(), 12);
        assert_eq!(id(&[b'x'; LONGEST + 1]), "");
    }
}
