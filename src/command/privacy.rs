//! Masks secrets before anything is stored for others to see. Pure.
//!
//! A secret is known by the name before it (`--api-key x`, `DB_PASSWORD=x`, `Authorization: x`), as the password of a
//! URL, or by its beginning (`ghp_`). A script isn't parsed beyond its quotation marks.

use std::borrow::Cow;
use std::ops::Range;

/// Shown instead of a secret.
const MASK: &str = "***";

/// Returns a text, or a script, without its secrets.
pub(in crate::command) fn masked(text: &str) -> Cow<'_, str> {
    let mut safe = String::new();
    let (mut copied, mut at, mut quote) = (0, 0, None);
    while let Some(c) = text[at..].chars().next() {
        if quote == Some('\'') || !text[..at].ends_with('\\') {
            quote = within(quote, c);
        }
        let end = at + length_of(&text[at..], is_name).max(c.len_utf8());
        let secret = secret_at(text, at..end, quote);
        at = end;
        if let Some(secret) = secret.filter(|secret| !secret.is_empty()) {
            safe = safe + &text[copied..secret.start] + MASK;
            copied = secret.end;
            at = secret.end;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    Cow::Owned(safe + &text[copied..])
}

/// The words of a command line, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words {
    /// The word before was an option whose value is a secret.
    expects_secret: bool,
}

impl Words {
    /// Returns the next word without its secrets.
    pub(super) fn masked<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        let is_option = word.starts_with('-');
        if std::mem::take(&mut self.expects_secret) && !is_option && !word.is_empty() {
            return Cow::Borrowed(MASK);
        }
        // The whole value, whatever characters it has, also in `--env=PASSWORD=x`.
        let names = &word[..length_of(word, |c| is_name(c) || c == '=')];
        let mut start = 0;
        for (end, _) in names.match_indices('=') {
            if is_secret(&names[start..end]) && end + 1 < word.len() {
                return Cow::Owned(format!("{}={MASK}", &word[..end]));
            }
            start = end + 1;
        }
        self.expects_secret = is_option && names == word && is_secret(&names[start..]);
        masked(word)
    }
}

/// Returns the secret that begins with a name, or follows it. The name is in a quotation with this mark, if in any.
fn secret_at(text: &str, name: Range<usize>, quote: Option<char>) -> Option<Range<usize>> {
    let Range { start, end } = name;
    if let Some(length) = token_length(&text[start..]) {
        return Some(start..start + length);
    }
    let (name, rest) = (&text[start..end], &text[end..]);
    if let Some(url) = rest.strip_prefix("://") {
        return login(url, name).map(|login| end + 3 + login.start..end + 3 + login.end);
    }
    if !is_secret(name) {
        return None;
    }
    if rest.starts_with('=') {
        return Some(end + 1..value_end(text, end + 1, quote));
    }
    // The mark behind the name of a field.
    let field = rest.trim_start_matches(['\\', '"', '\'']);
    let value = field.trim_start_matches(|c: char| c == ':' || c.is_whitespace());
    let start = text.len() - value.len();
    let separator = &field[..field.len() - value.len()];
    let is_header = name.to_ascii_lowercase().ends_with("authorization");
    let end = if separator.trim_start().starts_with(':') && field.len() < rest.len() {
        value_end(text, start, quote.filter(|mark| !rest.starts_with(*mark)))
    } else if separator.starts_with(": ") || separator == ":" && is_header {
        // As long as its line, or the quotation that it is in.
        let end = value.find(|c| c == '\n' || Some(c) == quote);
        end.map_or(text.len(), |length| start + length)
    } else if name.starts_with('-') && rest.starts_with(' ') && !value.starts_with('-') {
        value_end(text, start, quote)
    } else {
        return None;
    };
    Some(start..end)
}

/// Returns the end of the value that begins here: of its last part without a space, or in quotation marks. The mark
/// `outer` ends the quotation that the value is in.
fn value_end(text: &str, start: usize, outer: Option<char>) -> usize {
    let (mut quote, mut is_nested) = (None, false);
    let mut chars = text[start..].char_indices();
    while let Some((at, c)) = chars.next() {
        if quote.is_none() && !is_nested && (is_separator(c) || Some(c) == outer) {
            return start + at;
        }
        quote = within(quote, c);
        if c == '\\' && quote != Some('\'') {
            // As in `sh -c "a \"b c\""`.
            let is_mark = chars.next().is_some_and(|(_, c)| c == '"');
            is_nested ^= is_mark && quote.is_none();
        }
    }
    text.len()
}

/// Returns the password in a URL, of which `url` is what follows the scheme; or the user, if that may be a token.
fn login(url: &str, scheme: &str) -> Option<Range<usize>> {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
    let url = url.split(ends).next()?;
    let path = url.find(['/', '?', '#']).unwrap_or(url.len());
    // A password that isn't encoded may contain these. A number after the colon is a port.
    let has_port = |colon: usize| url[colon + 1..path].bytes().all(|b| b.is_ascii_digit());
    let at = match (url[..path].rfind('@'), url[..path].find(':')) {
        (Some(at), _) => at,
        (None, Some(colon)) if !has_port(colon) => url.rfind('@')?,
        _ => return None,
    };
    let user = url[..at].find(':').unwrap_or(at);
    if user + 1 < at {
        let is_token = token_length(&url[..user]).is_some();
        return Some(if is_token { 0 } else { user + 1 }..at);
    }
    let may_be_token = scheme == "git" || scheme.starts_with("http") || scheme.contains("redis");
    may_be_token.then_some(0..user)
}

/// Returns the length of the token that begins here, if it is known by its first characters.
fn token_length(text: &str) -> Option<usize> {
    // A JWT, or its beginning if the text is cut.
    if text.starts_with("eyJ") {
        let header = length_of(text, is_name);
        let is_token = header > RANDOM && text[header..].starts_with('.');
        return is_token.then(|| length_of(text, |c| is_name(c) || c == '.'));
    }
    PREFIXES.split(' ').find_map(|prefix| {
        let random = length_of(text.strip_prefix(prefix)?, |c| is_name(c) || c == '/');
        (random >= RANDOM).then_some(prefix.len() + random)
    })
}

/// Beginnings of tokens of GitHub, GitLab, Slack, AWS, Vault and Anthropic.
const PREFIXES: &str = "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- glrt- glptt- xox xapp- AKIA ASIA hvs. hvb. sk-ant- \
    hooks.slack.com/services/ hooks.slack.com/workflows/";

/// Smallest number of characters that follow; fewer are no token.
const RANDOM: usize = 10;

/// Returns true if an option, a variable or a field of this name has a secret as its value.
fn is_secret(name: &str) -> bool {
    // The addresses of web hooks are secrets, too.
    if matches!(name, "REDLOCK_HOOK" | "X-Amz-Signature" | "sig") {
        return true;
    }
    let lower = name.trim_start_matches('-').to_ascii_lowercase();
    let lower = lower.replace('-', "_");
    let parts = lower.split('_');
    let parts = parts.map(|part| part.trim_end_matches(|c: char| c.is_ascii_digit()));
    let parts: Vec<&str> = parts.collect();
    let is_in = |list: &str, part: &str| list.split(' ').any(|word| word == part);
    let names_secret =
        |part: &&str| is_in(WORDS, part) || ENDINGS.split(' ').any(|ending| part.ends_with(ending));
    let is_key = KEYS.split(' ').any(|key| lower.contains(key));
    !matches!(name, "PWD" | "OLDPWD")
        && !is_in(NEGATIONS, parts[0])
        && !parts.last().is_some_and(|last| is_in(ABOUT, last))
        && (is_key || parts.iter().any(names_secret))
}

/// Parts of a name that name a secret if they are the whole part.
const WORDS: &str = "auth pass pwd";

/// Ends of parts that name a secret, as in PGPASSWORD.
const ENDINGS: &str = "authorization password passwords passwd passphrase token secret secrets \
    credential credentials";

/// Keys that are secrets.
const KEYS: &str = "api_key apikey access_key accesskey secret_key private_key auth_key \
    encryption_key";

/// First parts of names of options without a secret.
const NEGATIONS: &str = "ask no";

/// Last parts of names that only say something about a secret.
const ABOUT: &str = "sock socket file path dir name type url stdin fd env user helper ttl";

/// Returns the mark of the quotation that goes on after this character, which may begin or end it.
fn within(quote: Option<char>, c: char) -> Option<char> {
    match quote {
        None => Some(c).filter(|c| matches!(c, '\'' | '"')),
        Some(mark) => Some(mark).filter(|mark| *mark != c),
    }
}

/// A character of a name: of a variable, an option, a URL's scheme.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Between the words of a script.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, ';' | '|' | '&' | '(' | ')' | '<' | '>' | '`')
}

/// Returns the length of the characters of this kind that a text begins with, in bytes.
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
            curl|-d|{"password": "s3 x", "a": 1} → curl|-d|{"password": *** "a": 1}
            curl|-d|{"password": "s\"3 x", "a": 1} → curl|-d|{"password": *** "a": 1}
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
            curl -d "{\"token\":\"s3\"}" h → curl -d "{\"token\":***" h
            curl -d '{"token":"s3"}' h → curl -d '{"token":***' h
            TOKEN=$TOKEN a --secret "${S}" b → TOKEN=*** a --secret *** b
            PASSWORD=$(cat /run/pw) a → PASSWORD=***(cat /run/pw) a
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
            if !line.contains(['`', '>']) {
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
