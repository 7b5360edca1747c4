//! Masks secrets before anything is stored for others to see. Pure.
//!
//! A secret is known by the name before it (`--api-key x`, `DB_PASSWORD=x`, `"token": "x"`, `Authorization: x`), as
//! the password of a URL, or by what it begins with (`ghp_`). A script isn't parsed beyond its quotation marks.

use std::borrow::Cow;
use std::ops::Range;

/// Shown in place of a secret.
const MASK: &str = "***";

/// A text, or a script, without its secrets.
pub(in crate::command) fn masked(text: &str) -> Cow<'_, str> {
    let mut safe = String::new();
    let mut copied = 0;
    for secret in Scan::new(text) {
        safe.push_str(&text[copied..secret.start]);
        safe.push_str(MASK);
        copied = secret.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    safe.push_str(&text[copied..]);
    Cow::Owned(safe)
}

/// The words of a command line, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words {
    /// The word before was an option whose value is a secret.
    expects_secret: bool,
}

impl Words {
    /// The next word without its secrets.
    pub(super) fn masked<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        let is_value = std::mem::take(&mut self.expects_secret) && !word.starts_with('-');
        if is_value && !word.is_empty() {
            return Cow::Borrowed(MASK);
        }
        // The whole value, whatever characters it has, also in `--env=PASSWORD=x`.
        let mut start = 0;
        loop {
            let name = &word[start..start + length_of(&word[start..], is_name)];
            let end = start + name.len();
            let value = word[end..].strip_prefix('=').unwrap_or_default();
            if value.is_empty() {
                self.expects_secret = word.starts_with('-') && end == word.len() && is_secret(name);
                return masked(word);
            }
            if is_secret(name) {
                return Cow::Owned(format!("{}={MASK}", &word[..end]));
            }
            start = end + 1;
        }
    }
}

/// Finds the secrets in a text.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    /// The mark of the quotation that this place is in.
    quote: &'a str,
}

impl Iterator for Scan<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        while self.at < self.text.len() {
            let secret = self.step();
            if let Some(secret) = secret.filter(|secret| !is_reference(&self.text[secret.clone()]))
            {
                self.at = secret.end;
                return Some(secret);
            }
        }
        None
    }
}

impl<'a> Scan<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            quote: "",
        }
    }

    /// Reads a quotation mark, a name or another character; the secret that begins there, if one does.
    fn step(&mut self) -> Option<Range<usize>> {
        let (text, start) = (self.text, self.at);
        let rest = &text[start..];
        if let Some(length) = token_length(rest) {
            return Some(start..start + length);
        }
        let length = length_of(rest, is_name);
        if length > 0 {
            self.at += length;
            return self.secret_after(&rest[..length]);
        }
        if let Some(mark) = mark_of(rest) {
            self.at += mark.len();
            if self.quote.is_empty() {
                self.quote = mark;
            } else if self.quote == mark {
                self.quote = "";
            }
            return None;
        }
        self.at += rest.chars().next().map_or(1, char::len_utf8);
        None
    }

    /// The secret that the name before this place introduces.
    fn secret_after(&self, name: &str) -> Option<Range<usize>> {
        let (text, end) = (self.text, self.at);
        let rest = &text[end..];
        if let Some(rest) = rest.strip_prefix("://") {
            return login(text, name, text.len() - rest.len());
        }
        if !is_secret(name) {
            return None;
        }
        // The quotation mark of a JSON field.
        let behind = mark_of(rest).map_or(rest, |mark| &rest[mark.len()..]);
        if let Some(value) = rest.strip_prefix('=') {
            let value = text.len() - value.len();
            return Some(value..self.value_end(value));
        }
        let is_field = behind.len() < rest.len();
        let is_header = name.to_ascii_lowercase().ends_with("authorization") || name.contains("X-");
        if let Some(value) = behind.trim_start().strip_prefix(':')
            && (is_field || is_header || value.starts_with(' '))
        {
            let start = text.len() - value.trim_start().len();
            let end = match mark_of(&text[start..]).filter(|_| is_field) {
                Some(mark) => self.text[start + mark.len()..]
                    .find(mark)
                    .map_or(text.len(), |length| start + length + 2 * mark.len()),
                None if is_header => self.line_end(start),
                None => self.value_end(start),
            };
            return Some(start..end);
        }
        let value = text.len() - rest.trim_start().len();
        let is_option = name.starts_with('-') && value > end && !text[value..].starts_with('-');
        is_option.then(|| value..self.value_end(value))
    }

    /// The end of the value that begins here: of its last part without a space, or in quotation marks.
    fn value_end(&self, start: usize) -> usize {
        let (mut at, mut quote) = (start, "");
        while let Some(c) = self.text[at..].chars().next() {
            let mark = mark_of(&self.text[at..]);
            let closes_outer = mark.is_some_and(|mark| mark == self.quote);
            if quote.is_empty() && (is_separator(c) || closes_outer) {
                return at;
            }
            match mark {
                Some(mark) if quote.is_empty() => quote = mark,
                Some(mark) if quote == mark => quote = "",
                _ => {}
            }
            at += match mark {
                Some(mark) => mark.len(),
                None if c == '\\' => {
                    1 + self.text[at + 1..].chars().next().map_or(0, char::len_utf8)
                }
                None => c.len_utf8(),
            };
        }
        self.text.len()
    }

    /// The end of the quotation that this place is in, or of the line.
    fn line_end(&self, start: usize) -> usize {
        let rest = &self.text[start..];
        let line = rest.find('\n').unwrap_or(rest.len());
        let quotation = if self.quote.is_empty() {
            None
        } else {
            rest.find(self.quote)
        };
        start + line.min(quotation.unwrap_or(line))
    }
}

/// The password in a URL whose authority begins at `start`; or the user, if that may be a token.
fn login(text: &str, scheme: &str, start: usize) -> Option<Range<usize>> {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
    let url = text[start..].split(ends).next()?;
    let path = url.find(['/', '?', '#']).unwrap_or(url.len());
    // A password that isn't encoded may contain these. A number after the colon is a port.
    let has_port = |colon: usize| url[colon + 1..path].bytes().all(|b| b.is_ascii_digit());
    let at = match (url[..path].rfind('@'), url[..path].find(':')) {
        (Some(at), _) => at,
        (None, Some(colon)) if !has_port(colon) => url.rfind('@')?,
        _ => return None,
    };
    let (user, password) = url[..at].split_once(':').unwrap_or((&url[..at], ""));
    let may_be_token = scheme == "git" || scheme.starts_with("http") || scheme.contains("redis");
    if password.is_empty() {
        return may_be_token.then(|| start..start + user.len());
    }
    let masked_from = if token_length(user).is_some() {
        0
    } else {
        user.len() + 1
    };
    Some(start + masked_from..start + at)
}

/// The length of the token that begins here, if it is known by its first characters.
fn token_length(text: &str) -> Option<usize> {
    // A JWT, or its beginning if the text is cut.
    if text.starts_with("eyJ") {
        let header = length_of(text, is_name);
        let is_token = header > RANDOM && text[header..].starts_with('.');
        return is_token.then(|| length_of(text, |c| is_name(c) || c == '.'));
    }
    PREFIXES.iter().find_map(|prefix| {
        let random = length_of(text.strip_prefix(prefix)?, |c| is_name(c) || c == '/');
        (random >= RANDOM).then_some(prefix.len() + random)
    })
}

/// What tokens of GitHub, GitLab, Slack, AWS, Vault and Anthropic begin with.
const PREFIXES: [&str; 13] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "hvs.",
    "sk-ant-",
    "hooks.slack.com/services/",
    "hooks.slack.com/workflows/",
];

/// How many characters follow at least; fewer are no token.
const RANDOM: usize = 10;

/// Whether an option, a variable or a field of this name has a secret as its value.
fn is_secret(name: &str) -> bool {
    // The addresses of web hooks are secrets, too.
    if matches!(name, "REDLOCK_HOOK" | "X-Amz-Signature" | "sig") {
        return true;
    }
    let lower = name
        .trim_start_matches('-')
        .to_ascii_lowercase()
        .replace('-', "_");
    let parts: Vec<&str> = lower
        .split('_')
        .map(|part| part.trim_end_matches(|c: char| c.is_ascii_digit()))
        .collect();
    let names_secret =
        |part: &&str| WORDS.contains(part) || ENDINGS.iter().any(|ending| part.ends_with(ending));
    let is_key = KEYS.iter().any(|key| lower.contains(key));
    !matches!(name, "PWD" | "OLDPWD")
        && !matches!(parts[0], "ask" | "no")
        && !parts.last().is_some_and(|last| ABOUT.contains(last))
        && (is_key || parts.iter().any(names_secret))
}

/// Parts of a name that name a secret if they are the whole part.
const WORDS: [&str; 3] = ["auth", "pass", "pwd"];

/// Ends of parts that name a secret, as in PGPASSWORD.
const ENDINGS: [&str; 10] = [
    "authorization",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "secrets",
    "credential",
    "credentials",
];

/// Keys that are secrets.
const KEYS: [&str; 8] = [
    "api_key",
    "apikey",
    "access_key",
    "accesskey",
    "secret_key",
    "private_key",
    "auth_key",
    "encryption_key",
];

/// Last parts of names that only say something about a secret.
const ABOUT: [&str; 14] = [
    "sock", "socket", "file", "path", "dir", "name", "type", "url", "stdin", "fd", "env", "user",
    "helper", "ttl",
];

/// The marks of a quotation: the first is one within another, as in `sh -c "a \"b c\""`.
const MARKS: [&str; 3] = ["\\\"", "'", "\""];

/// The quotation mark that a text begins with.
fn mark_of(text: &str) -> Option<&'static str> {
    MARKS.into_iter().find(|mark| text.starts_with(mark))
}

/// A character of a name: of a variable, an option, a URL's scheme.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Between the words of a script.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, ';' | '|' | '&' | '(' | ')' | '<' | '>' | '`')
}

/// Whether a value is empty, or only names a variable or a command whose output it is.
fn is_reference(value: &str) -> bool {
    let value = value.trim_matches(['"', '\\']);
    let Some(name) = value.strip_prefix('$') else {
        return value.is_empty();
    };
    let braced = name
        .strip_prefix('{')
        .and_then(|name| name.strip_suffix('}'));
    name.starts_with('(')
        || length_of(braced.unwrap_or(name), is_name) == braced.unwrap_or(name).len()
}

/// The length of the characters of this kind that a text begins with, in bytes.
fn length_of(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.len() - text.trim_start_matches(is_part).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line without its secrets, as its words.
    fn shown(line: &[&str]) -> String {
        let mut words = Words::default();
        let shown: Vec<Cow<str>> = line.iter().map(|word| words.masked(word)).collect();
        shown.join("|")
    }

    /// Checks rows of what is masked and what becomes of it.
    #[track_caller]
    fn assert_masked(rows: &str, mask: impl Fn(&str) -> String) {
        for row in rows.trim().lines() {
            let (line, expected) = row.trim().split_once(" → ").expect("two columns");
            assert_eq!(mask(line), expected);
        }
    }

    #[test]
    fn a_word_of_a_command_line_keeps_no_secret() {
        let rows = r#"
            a|--password=s3 cr&t|b → a|--password=***|b
            a|--password|s3 cret|b → a|--password|***|b
            a|--api-key|s3|-v → a|--api-key|***|-v
            a|--apiKey=s3|-token|s3 → a|--apiKey=***|-token|***
            env|AWS_SECRET_ACCESS_KEY=s3|x → env|AWS_SECRET_ACCESS_KEY=***|x
            env|DB_PASS=$ecret|PASSWORD1=x y → env|DB_PASS=***|PASSWORD1=***
            docker|run|-eGH_TOKEN=s3 → docker|run|-eGH_TOKEN=***
            docker|run|--env=PGPASSWORD=a b → docker|run|--env=PGPASSWORD=***
            restic|--password-command|echo s3 → restic|--password-command|***
            env|REDLOCK_HOOK=curl https://hooks/s3 → env|REDLOCK_HOOK=***
            helm|--set|db.password=s3,a=b → helm|--set|db.password=***
            a|--url=redis://u:s/3@h:1 → a|--url=redis://u:***@h:1
            curl|https://h/?token=s3&x=1 → curl|https://h/?token=***&x=1
            curl|-HAuthorization: Bearer s3 → curl|-HAuthorization: ***
            curl|-d|{"password": "s3 x", "a": 1} → curl|-d|{"password": ***, "a": 1}
            sh|-c|a --token s3 b → sh|-c|a --token *** b
            bash|-lc|TOKEN=s3; a b → bash|-lc|TOKEN=***
        "#;
        assert_masked(rows, |line| shown(&line.split('|').collect::<Vec<_>>()));
    }

    #[test]
    fn a_line_for_a_shell_keeps_no_secret() {
        let rows = r#"
            PGPASSWORD=s3cret psql -l → PGPASSWORD=*** psql -l
            a --password='s3 cret' b → a --password=*** b
            a --password "s3 cret" b → a --password *** b
            a;TOKEN=s3;b → a;TOKEN=***;b
            export TOKEN='a'"b" && x → export TOKEN=*** && x
            ssh h 'TOKEN=s3 x y' → ssh h 'TOKEN=*** x y'
            x --secret=s3\ 4 y → x --secret=*** y
            bash -c "a --token 'X Y' b" → bash -c "a --token *** b"
            bash -c "a --password=\"X Y\" b" → bash -c "a --password=*** b"
            curl -H 'authorization:Bearer s3' h → curl -H 'authorization:***' h
            curl -H 'X-Api-Key: s3 4' h → curl -H 'X-Api-Key: ***' h
            curl -d "{\"token\":\"s3\"}" h → curl -d "{\"token\":***}" h
            git clone https://x:s3@h/r && make → git clone https://x:***@h/r && make
            pip install git+https://X@h/r → pip install git+https://***@h/r
            redis-cli -u rediss://X@h → redis-cli -u rediss://***@h
            curl 'https://h/b?sv=1&sig=a%2Bb&c' → curl 'https://h/b?sv=1&sig=***&c'
            TOKEN='$ecret' x → TOKEN=*** x
            TOKEN=${A:-s3} x → TOKEN=*** x
            é --passwd=ü x → é --passwd=*** x
            a ghp_0123456789 b → a *** b
            curl h?x=glpat-0123456789&y → curl h?x=***&y
            a eyJ01234567.eyJ0.x-_ b → a *** b
            curl https://ghp_0123456789:x@h → curl https://***@h
            curl https://hooks.slack.com/services/T012/B012/x3 → curl https://***
        "#;
        assert_masked(rows, |line| masked(line).into_owned());
    }

    #[test]
    fn what_is_no_secret_stays_untouched() {
        for line in [
            "",
            "./deploy.sh production --verbose",
            "a --password-file /run/x --token-file=/run/y",
            "a --no-auth b --auth-type basic c --ask-become-pass site.yml",
            "TOKEN=$TOKEN a --password=\"$PW\" --secret \"${S}\" b",
            "PASSWORD=$(cat /run/pw) a b",
            "PASSWORD=`cat /run/pw` a",
            "PWD=/srv SSH_AUTH_SOCK=/run/a a",
            "COMPASS=x --bypass y --multipass z",
            "docker run -p 80:80 mysql -p db",
            "kubectl set image auth-service:1.2",
            "PASSWORD= a",
            "rsync h::mod/path user@h:/x https://h:8080/a@b ssh://git@h/r psql postgres://ann@h/db",
            "a --max-tokens 5 --tokenizer=x --author=ann --key=v --keyword k",
            "the token is rotated; see https://h/x?y=1",
            "cut -d: -f1 /etc/passwd",
            "./deploy.sh --rotate-token > log",
            "ghp_x eyJ.x AKIA glpat-x a-ghp_01 sig a=\"",
        ] {
            let masked = masked(line);
            assert!(matches!(masked, Cow::Borrowed(_)), "{line} → {masked}");
            let words: Vec<&str> = line.split(' ').collect();
            if !line.contains(['$', '`', '>']) {
                assert_eq!(shown(&words), words.join("|"));
            }
        }
    }

    #[test]
    fn any_text_can_be_read_and_what_is_masked_once_stays_so() {
        // All texts of a few pieces, whatever sense they make.
        let pieces = r#"--token = ' " \ :// : @ é $ ghp_0123456789 |"#
            .split(' ')
            .chain([" "]);
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            texts = texts
                .iter()
                .flat_map(|text| pieces.clone().map(move |piece| text.clone() + piece))
                .collect();
        }
        for text in texts {
            let once = masked(&text).into_owned();
            let marks = |text: &str| text.matches(MASK).count();
            assert_eq!(marks(&masked(&once)), marks(&once), "{text:?}");
            let _ = shown(&text.split(' ').collect::<Vec<_>>());
        }
    }
}
