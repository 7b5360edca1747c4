//! The scripts as they are shipped, and what all calls of them have.

macro_rules! scripts {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!(env!("OUT_DIR"), "/", $name, ".lua")))),*]
    };
}

/// The scripts by their names, as they are sent.
pub const SCRIPTS: [(&str, &str); 17] = scripts![
    "take", "acquire", "renew", "prolong", "keep", "check", "free", "release", "force", "stop",
    "freeze", "thaw", "skip", "history", "inspect", "guard", "leave"
];

/// The script of this name.
pub fn source(name: &str) -> &'static str {
    let entry = SCRIPTS.iter().find(|(script, _)| *script == name);
    entry.unwrap_or_else(|| panic!("no script {name}")).1
}

/// The keys of the lock "a", as the scripts take them.
pub const KEYS: [&str; 11] = [
    "redlock:a",
    "{redlock:a}:state",
    "{redlock:a}:meta",
    "{redlock:a}:holders",
    "{redlock:a}:queue",
    "{redlock:a}:waiters",
    "{redlock:a}:history",
    "{redlock:}:index",
    "{redlock:a}:slots",
    "{redlock:a}:exempt",
    "{redlock:a}:guards",
];

/// A run that watches over its lock.
pub const WHO: &str = r#"{"host":"h","user":"u","pid":1,"command":["c"],"instance":"i"}"#;

/// No limit: shared.
pub const SHARED: &str = "1000000000";

/// What others call a token.
pub fn id(token: &str) -> String {
    let mut digits = sha1_smol::Sha1::from(token).digest().to_string();
    digits.truncate(12);
    digits
}
