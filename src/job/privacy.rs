//! Masks secrets in everything that is stored for others to see. Pure.
//!
//! A secret is recognized by the name before it (`--api-key x`, `DB_PASSWORD=x`,
//! `Authorization: x`), as the password of a URL, or by its beginning (`ghp_`).
//! Scripts aren't parsed: if it is unclear where a value ends, too much is masked.

use std::ops::Range;

/// Replacement of a secret.
const MASK: &str = "***";

/// Returns a text, or a script, without its secrets.
pub fn masked(text: &str) -> String {
    let mut safe = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(c) = text[at..].chars().next() {
        let name = length_of(&text[at..], is_name);
        match secret_in(&text[at..], name, &text[..at]) {
            Some(secret) if name > 0 && !secret.is_empty() => {
                safe = safe + &text[copied..at + secret.start] + MASK;
                copied = at + secret.end;
                at = copied;
            }
            _ => at += name.max(c.len_utf8()),
        }
    }
    safe + &text[copied..]
}

/// Masks the words of a command line, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words {
    /// The previous word was an option whose value is a secret.
    expects_secret: bool,
}

impl Words {
    /// Returns the next word without its secrets.
    pub fn masked(&mut self, word: &str) -> String {
        let is_option = word.starts_with('-');
        if std::mem::take(&mut self.expects_secret) && !is_option && !word.is_empty() {
            return MASK.to_owned();
        }
        // Masks the whole value, whatever characters it contains. Also recognizes `--env=PASSWORD=x`.
        let names = &word[..length_of(word, |c| is_name(c) || matches!(c, '=' | '.'))];
        let has_secret = |end: usize| is_secret(names[..end].rsplit('=').next().unwrap_or(""));
        let mut ends = names.match_indices('=').map(|(end, _)| end);
        if let Some(end) = ends.find(|&end| has_secret(end) && end + 1 < word.len()) {
            return format!("{}={MASK}", &word[..end]);
        }
        self.expects_secret = is_option && names == word && has_secret(word.len());
        masked(word)
    }
}

/// Returns redlock's own URL without its secrets, whatever characters they contain.
pub fn masked_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    let user = login.split_once(':').map_or("", |(user, _)| user);
    let sign = if login.is_empty() { "" } else { ":***@" };
    let value = |name: usize| Some(name + place[name..].find('=')?);
    let secret = place.find("pass").and_then(value);
    let (place, mask) = secret.map_or((place, ""), |value| (&place[..=value], MASK));
    format!("{scheme}://{user}{sign}{place}{mask}")
}

/// Returns the position of the secret at the beginning of a text, or after the name at its beginning.
/// `name` is the length of that name. `before` is the preceding text, which may have opened a quotation.
fn secret_in(text: &str, name: usize, before: &str) -> Option<Range<usize>> {
    if let Some(length) = token_length(text) {
        return Some(0..length);
    }
    let (name, rest) = text.split_at(name);
    let next = rest.trim_start();
    let is_open = |mark: &char| before.matches(*mark).count() % 2 == 1;
    let outer = || ['"', '\''].into_iter().find(is_open);
    let (value, length) = if let Some(url) = rest.strip_prefix("://") {
        login(url, name)?
    } else if !is_secret(name) {
        return None;
    } else if let Some(value) = rest.strip_prefix('=') {
        (value, value_length(value, outer()))
    } else if name.starts_with('-') && rest.starts_with(' ') && !next.starts_with('-') {
        (next, value_length(next, outer()))
    } else {
        let field = rest.trim_start_matches(['\\', '"', '\'']);
        let value = field.trim_start().strip_prefix(':')?;
        let lower = name.to_ascii_lowercase();
        let is_header = lower.ends_with("authorization") || lower.contains("x-");
        let is_field = field.len() < rest.len();
        let is_text = value.starts_with(' ') && lower != "auth";
        (is_field || is_header || is_text).then_some(())?;
        let value = value.trim_start();
        // The value ends with its own quotation, with the line, or with the quotation around it.
        let outer = outer();
        let ends = |c: char| c == '\n' || Some(c) == outer;
        let length = quotation(value).or_else(|| value.find(ends));
        (value, length.unwrap_or(value.len()))
    };
    let start = text.len() - value.len();
    Some(start..start + length)
}

/// Returns the length of the value at the beginning of a text: one word
/// with its quotations. `outer` is the mark of a quotation around it.
fn value_length(text: &str, outer: Option<char>) -> usize {
    let ends = |c: &char| c.is_whitespace() || ";|&()<>`".contains(*c);
    let mut at = 0;
    while let Some(c) = text[at..].chars().next().filter(|c| !ends(c)) {
        at += match quotation(&text[at..]) {
            Some(_) if at > 0 && Some(c) == outer => return at,
            Some(length) => length,
            None if c == '\\' => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
            None => c.len_utf8(),
        };
    }
    at
}

/// Returns the length of the quotation at the beginning of a text, if
/// there is one. An unclosed quotation extends to the end of the text.
fn quotation(text: &str) -> Option<usize> {
    let mut marks = ["\\\"", "\"", "'"].into_iter();
    let mark = marks.find(|mark| text.starts_with(mark))?;
    // In double quotation marks, a backslash escapes the next mark.
    let closes = |end: &usize| mark != "\"" || !text[..=*end].ends_with('\\');
    let mut ends = text[mark.len()..].match_indices(mark).map(|(end, _)| end);
    let end = ends.find(closes);
    Some(end.map_or(text.len(), |end| end + 2 * mark.len()))
}

/// Returns the rest of a URL from its password on, or from its user if that may
/// be a token, and the secret's length. `rest` is the URL without its scheme.
fn login<'a>(rest: &'a str, scheme: &str) -> Option<(&'a str, usize)> {
    // A URL that is a separate word may contain any characters.
    let is_script = rest.contains(char::is_whitespace);
    let ends = |c: char| c.is_whitespace() || is_script && "\"'<>`".contains(c);
    let url = rest.split(ends).next()?;
    let host = url.split(['/', '?', '#']).next()?;
    // A password that isn't encoded may contain these characters. A number after the colon is a port.
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    let at = match host.rsplit_once(':') {
        Some((_, port)) if !is_port(port) && !host.contains('@') => url.rfind('@')?,
        _ => host.rfind('@')?,
    };
    let Some(user) = url[..at].find(':').filter(|user| user + 1 < at) else {
        let may_be_token = scheme.contains("http") || scheme.contains("redis") || scheme == "git";
        return may_be_token.then_some((rest, at));
    };
    let start = token_length(&url[..user]).map_or(user + 1, |_| 0);
    Some((&rest[start..], at - start))
}

/// Returns the length of the token at the beginning of a text, if its first characters are those of a known kind.
fn token_length(text: &str) -> Option<usize> {
    PREFIXES.split(' ').find_map(|prefix| {
        let random = length_of(text.strip_prefix(prefix)?, |c| {
            is_name(c) || "/.".contains(c)
        });
        (random >= RANDOM).then_some(prefix.len() + random)
    })
}

/// Beginnings of tokens of GitHub, GitLab, Slack, AWS, Vault and Anthropic, and of JSON web tokens.
const PREFIXES: &str = "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- glrt- glptt- gldt- glcbt- glft- glsoat- glagent- xox xapp- AKIA ASIA hvs. hvb. hvr. sk-ant- \
    hooks.slack.com/services/ hooks.slack.com/workflows/ hooks.slack.com/triggers/ eyJ";

/// Smallest number of characters after such a beginning in a token.
const RANDOM: usize = 10;

/// Returns true if an option, variable or field of this name contains a secret.
fn is_secret(name: &str) -> bool {
    let lower = name.trim_start_matches('-').to_ascii_lowercase();
    let lower = lower.replace(['-', '.'], "_");
    let whole = lower.replace('_', "");
    let is_digit = |c: char| c.is_ascii_digit();
    let is_in = |list: &str, part: &str| list.split(' ').any(|word| word == part);
    let parts = lower.split('_');
    let parts: Vec<&str> = parts.map(|part| part.trim_end_matches(is_digit)).collect();
    let names_secret =
        |part: &&str| is_in(WORDS, part) || ENDINGS.split(' ').any(|ending| part.ends_with(ending));
    let has_secret =
        KEYS.split(' ').any(|key| whole.contains(key)) || parts.iter().any(names_secret);
    has_secret
        && !is_in(NEGATIONS, parts[0])
        && !is_in(ABOUT, parts[parts.len() - 1])
        && !matches!(name, "PWD" | "OLDPWD")
}

/// Words that mean a secret if a part of a name consists of one.
const WORDS: &str = "auth pass pwd sig";

/// Endings that mean a secret if a part of a name has one, as in PGPASSWORD.
const ENDINGS: &str = "authorization password passwords passwd passphrase token secret secrets \
    credential credentials";

/// Names of secret keys and addresses, which may be anywhere in a name.
const KEYS: &str =
    "apikey accesskey secretkey privatekey authkey encryptionkey xamzsignature redlockhook";

/// First words of names of options that have no secret as their value.
const NEGATIONS: &str = "ask no prompt reset rotate skip without";

/// Last words of names whose value is only a fact about a secret.
const ABOUT: &str = "sock socket file path dir name type url stdin fd env user helper ttl \
    lifetime method enabled id";

/// Returns true for a character of a name: of a variable, an option, or a URL's scheme.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Returns the length in bytes of the longest beginning of a text that has only such characters.
fn length_of(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.len() - text.trim_start_matches(is_part).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a command line without its secrets, its words separated by `|`.
    fn shown(line: &[&str]) -> String {
        let mut words = Words::default();
        let shown: Vec<String> = line.iter().map(|word| words.masked(word)).collect();
        shown.join("|")
    }

    /// Checks rows of a text and its masked form.
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
            curl|-d|{"password": "s\"3 x", "a": 1} → curl|-d|{"password": ***, "a": 1}
            sh|-c|a --token s3 b → sh|-c|a --token *** b
            sh|-c|a --token --password s3 → sh|-c|a --token --password ***
            bash|-lc|TOKEN=s3; a b → bash|-lc|TOKEN=***
            java|--spring.datasource.password=p&s3 → java|--spring.datasource.password=***
            exporter|-redis.password|s3 → exporter|-redis.password|***
            curl|https://u:Ab's3x@h/ → curl|https://u:***@h/
            curl|-HX-Api-Key:s3 → curl|-HX-Api-Key:***
            curl|-HX-Api-Key: a'b s3 → curl|-HX-Api-Key: ***
            curl|-d|{"private_key":"s3 cut → curl|-d|{"private_key":***
            curl|-d|{"secretKey" : "s3"} → curl|-d|{"secretKey" : ***}
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
            curl -H "Authorization: Bearer $T" h -d "e=p" → curl -H "Authorization: ***" h -d "e=p"
            curl -d "{\"token\":\"s3\"}" h → curl -d "{\"token\":***}" h
            curl -d '{"token":"s3"}' h → curl -d '{"token":***}' h
            TOKEN=$TOKEN a --secret "${S}" b → TOKEN=*** a --secret *** b
            PASSWORD=$(cat /run/pw) a → PASSWORD=***(cat /run/pw) a
            git clone https://x:s3@h/r && make → git clone https://x:***@h/r && make
            pip install git+https://X@h/r → pip install git+https://***@h/r
            git clone https://X:@h/r → git clone https://***@h/r
            redis-cli -u rediss://:X@h → redis-cli -u rediss://:***@h
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
        assert_masked(rows, masked);
    }

    #[test]
    fn our_own_url_is_shown_without_what_may_be_a_secret() {
        for (url, shown) in [
            ("redis://h:1/2", "redis://h:1/2"),
            ("redis://:it's3@h", "redis://:***@h"),
            ("redis://ann:a\"b;c@h:1/2", "redis://ann:***@h:1/2"),
            ("redis://s3@h", "redis://:***@h"),
            ("unix:///r?pass=a;s3'&db=2", "unix:///r?pass=***"),
            (
                "redis-sentinel://a/n?sentinel_password_file=f",
                "redis-sentinel://a/n?sentinel_password_file=***",
            ),
        ] {
            assert_eq!(masked_url(url), shown);
        }
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
            "auth: fix the login page",
            "ldap --rotate-secrets prod --token-lifetime 3600 --auth-method ldap",
            "PASSWORD= a",
            "rsync h::mod/path user@h:/x https://h:8080/a@b ssh://git@h/r psql postgres://ann@h/db",
            "a --max-tokens 5 --tokenizer=x --author=ann --key=v --keyword k",
            "the token is rotated; see https://h/x?y=1",
            "cut -d: -f1 /etc/passwd",
            "./deploy.sh --rotate-token > log",
            "ghp_x eyJ.x AKIA glpat-x a-ghp_01 sig a=\"",
        ] {
            let masked = masked(line);
            assert_eq!(masked, line);
            let words: Vec<&str> = line.split(' ').collect();
            if !line.contains(['`', '>']) {
                assert_eq!(shown(&words), words.join("|"));
            }
        }
    }

    #[test]
    fn any_text_can_be_read_and_what_is_masked_once_stays_so() {
        // All texts that consist of four or fewer of these pieces.
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
            let once = masked(&text);
            let marks = |text: &str| text.matches(MASK).count();
            assert_eq!(marks(&masked(&once)), marks(&once), "{text:?}");
            let _ = shown(&text.split(' ').collect::<Vec<_>>());
        }
    }
}
