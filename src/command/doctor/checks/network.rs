//! The network: the connection, TLS, sentinels, latency, time-outs and clocks. Pure.

use std::time::Duration;

use super::super::finding::{Check, Finding, Group};
use super::{Measure, config_set, in_parts, micros, redis_cli, rounded_up, short};
use crate::lock::doctor::{
    ClockOffset, Evidence, SentinelAnswer, SentinelEvidence, Transport, Unknown, Validity,
    best_clock,
};
use crate::lock::{Error, ErrorKind};
use crate::report::format_duration;

const CONNECTION: Check = Check("connection", Group::Network);
const TLS: Check = Check("tls", Group::Network);

/// Whether it was TLS that failed.
fn is_about_tls(evidence: &Evidence, error: &Error) -> bool {
    matches!(evidence.transport, Transport::Tls { .. }) && error.kind == ErrorKind::Config
}

pub(super) fn connection(evidence: &Evidence) -> Finding {
    match &evidence.connected {
        Ok(took) => {
            let user = evidence.user.as_ref();
            let user = user.map_or(String::new(), |user| format!(" as user \"{user}\""));
            let message = format!("connected{user}, and answered in {}", short(*took));
            CONNECTION.ok(message).with("took_us", micros(*took))
        }
        Err(error) if is_about_tls(evidence, error) => CONNECTION.unknown(&Unknown::NotAsked),
        Err(error) => {
            let (message, fix) = in_parts(evidence, error);
            if error.kind == ErrorKind::NoPrimary && evidence.sentinels.is_some() {
                return CONNECTION.fail(
                    message,
                    "start the primary, or wait for the failover; see the sentinels' answers below",
                );
            }
            // Without them it isn't known which server is meant.
            if let Some(found) = &evidence.sentinels
                && answers(found).next().is_none()
            {
                return CONNECTION.unknown(&Unknown::NotAsked);
            }
            let ping = redis_cli(evidence, &["PING"]);
            let fix = fix.unwrap_or_else(|| match error.kind {
                ErrorKind::Unreachable if message.contains("refused") => {
                    format!("nothing listens there: start Redis, or correct the URL ({ping})")
                }
                ErrorKind::Unreachable if message.contains("in time") => format!(
                    "a firewall drops what we send, or the server hangs; see whether {ping} answers"
                ),
                ErrorKind::Refused => "correct the user or the password".into(),
                _ => format!("see whether {ping} answers"),
            });
            CONNECTION.fail(message, fix)
        }
    }
}

pub(super) fn tls(evidence: &Evidence, measure: Measure) -> Finding {
    let host = match &evidence.transport {
        Transport::Socket => return TLS.moot("a socket of this host"),
        Transport::Plain { is_loopback: true } => return TLS.moot("not used within this host"),
        Transport::Plain { is_loopback: false } => {
            return TLS.ok("not used: whoever listens on the line reads all (rediss:// encrypts)");
        }
        Transport::Tls { host } => host,
    };
    match (&evidence.connected, evidence.certificate) {
        (Err(error), _) if is_about_tls(evidence, error) => {
            let (message, fix) = in_parts(evidence, error);
            TLS.fail(message, fix.unwrap_or_else(|| "check --tls-ca".into()))
        }
        (_, Some(validity)) => {
            let what = format!("the certificate for {host}");
            let fix = format!("renew the certificate of {host}");
            certificate(TLS, &what, fix, validity, measure)
        }
        (Ok(_), None) => TLS.unknown(&Unknown::Failed("its certificate can't be read".into())),
        (Err(_), None) => TLS.unknown(&Unknown::NotAsked),
    }
}

pub(super) fn client_certificate(evidence: &Evidence, measure: Measure) -> Option<Finding> {
    let validity = evidence.own_certificate?;
    let check = Check("client-certificate", Group::Network);
    let (what, fix) = ("the one we show (--tls-cert)", "renew it".into());
    Some(certificate(check, what, fix, validity, measure))
}

/// Certificates are renewed this long before they end, at the latest; short ones after five sixths of their
/// time.
const RENEWED_BEFORE: i64 = 14 * 86400;

fn certificate(
    check: Check,
    what: &str,
    fix: String,
    validity: Validity,
    measure: Measure,
) -> Finding {
    let seconds = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let left = validity.until - measure.now;
    let long = validity.until - validity.from;
    let finding = if left <= 0 {
        let ago = format_duration(seconds(left));
        check.fail(format!("{what} has expired, {ago} ago"), fix)
    } else if left < RENEWED_BEFORE.min(long / 6) {
        let left = format_duration(seconds(left));
        check.warn(format!("{what} expires in {left}"), fix)
    } else {
        let left = format_duration(seconds(left));
        check.ok(format!("{what} is valid for {left} more"))
    };
    finding.with("expires_in_s", left)
}

const LATENCY: Check = Check("latency", Group::Network);

/// Renewals should take less than this part of the time between them.
const SLOW: u32 = 10;

pub(super) fn latency(evidence: &Evidence, measure: Measure) -> Finding {
    let trips = match &evidence.round_trips {
        Ok(trips) => trips,
        Err(why) => return LATENCY.unknown(why),
    };
    let mut times: Vec<Duration> = trips.iter().map(|trip| trip.took).collect();
    times.sort();
    let (Some(&most), many) = (times.last(), times.len()) else {
        return LATENCY.unknown(&Unknown::NoAnswer);
    };
    let at = |percent: usize| times[(many * percent).div_ceil(100).max(1) - 1];
    let (p50, p99) = (at(50), at(99));
    let renewal = measure.renewal();
    let message = format!(
        "p50 {}, p99 {}, max {}; one renewal every {}",
        short(p50),
        short(p99),
        short(most),
        format_duration(renewal)
    );
    let longer = |factor: u32| format_duration(rounded_up(most * factor));
    let finding = if most >= renewal {
        let fix = format!("a TTL with room for it: --ttl {}", longer(3 * SLOW));
        LATENCY.fail(message, fix)
    } else if p99 >= renewal / SLOW {
        let fix = format!("a longer TTL: --ttl {}", longer(3 * SLOW));
        LATENCY.warn(message, fix)
    } else {
        LATENCY.ok(message)
    };
    finding
        .with("p50_us", micros(p50))
        .with("p99_us", micros(p99))
        .with("max_us", micros(most))
        .with("samples", many)
}

pub(super) fn timeouts(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("timeouts", Group::Network);
    let (ours, renewal) = (evidence.timeout, measure.renewal());
    let message = format!("--connect-timeout {}", format_duration(ours));
    if ours > renewal {
        let less = format_duration(rounded_down(renewal));
        return check.warn(
            format!(
                "{message} is longer than a third of the TTL: one silent server costs several renewals"
            ),
            format!("--connect-timeout {less}, or a longer TTL"),
        );
    }
    let idle = match evidence.config.get("timeout") {
        Some(Ok(text)) => text.parse().map(Duration::from_secs).unwrap_or_default(),
        _ => return check.ok(message),
    };
    if idle > Duration::ZERO && idle <= renewal {
        return check.warn(
            format!(
                "the server closes connections that are idle for {}: each renewal needs a new one",
                format_duration(idle)
            ),
            config_set(evidence, "timeout", "0"),
        );
    }
    let idle = match idle {
        Duration::ZERO => "the server keeps idle connections".to_owned(),
        idle => format!("idle connections are kept for {}", format_duration(idle)),
    };
    check.ok(format!("{message}; {idle}"))
}

fn rounded_down(duration: Duration) -> Duration {
    match duration.as_secs() {
        0 => Duration::from_millis(u64::from(duration.subsec_millis()) / 100 * 100),
        seconds => Duration::from_secs(seconds),
    }
}

/// Clocks of servers may differ by this much, which is what synchronised ones stay far below.
const APART: Duration = Duration::from_millis(500);

/// Clocks are not said to be closer to each other than this.
const LEAST_APART: Duration = Duration::from_millis(1);

/// Nothing depends on how far our own clock is off; but people compare times.
const OWN_APART: Duration = Duration::from_secs(10);

pub(super) fn clocks(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("clocks", Group::Network);
    let trips = match &evidence.round_trips {
        Ok(trips) => trips,
        Err(why) => return check.unknown(why),
    };
    let Some(server) = best_clock(trips) else {
        return check.unknown(&Unknown::Denied("TIME"));
    };
    let mut message = if server.ahead_us.unsigned_abs() <= server.error_us {
        "the server's agrees with this host's".to_owned()
    } else {
        format!("the server's is {} of this host's", ahead(server))
    };
    let mut most: Option<(Duration, String)> = None;
    let mut silent = Vec::new();
    for replica in evidence.replicas.iter().chain(&evidence.nodes) {
        match &replica.clock {
            Ok(clock) => {
                let apart = apart(*clock, server);
                if most.as_ref().is_none_or(|(most, _)| apart > *most) {
                    most = Some((apart, replica.entry.place()));
                }
            }
            Err(_) => silent.push(replica.entry.place()),
        }
    }
    if let Some((most, _)) = &most {
        message = format!(
            "{message}; the other servers' within {}",
            short((*most).max(LEAST_APART))
        );
    }
    if let Some(first) = silent.first() {
        let others = match silent.len() {
            1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        message = format!("{message}; not known of {first}{others}");
    }
    let sync = "synchronise the hosts' clocks (chronyc tracking shows the offset)";
    let skewed = |most: Duration| {
        let most = format_duration(rounded_up(most));
        format!("synchronise the hosts' clocks; until then --clock-skew {most}")
    };
    let finding = match most {
        Some((most, place)) if most >= measure.ttl / 2 => check.fail(
            format!(
                "the clock of {place} is {} from the primary's: after a failover leases of {} end too early or too late",
                short(most),
                format_duration(measure.ttl)
            ),
            sync,
        ),
        Some((most, place)) if most >= APART => check.warn(
            format!(
                "the clock of {place} is {} from the primary's: after a failover leases end that much too early",
                short(most)
            ),
            skewed(most),
        ),
        _ if Duration::from_micros(server.ahead_us.unsigned_abs()) >= OWN_APART => check.warn(
            format!("{message}; times in status and history are the server's"),
            sync,
        ),
        _ => check.ok(message),
    };
    finding.with("server_ahead_us", server.ahead_us)
}

/// `12 ms ahead`, `0.3 ms behind`.
fn ahead(clock: ClockOffset) -> String {
    let by = short(Duration::from_micros(clock.ahead_us.unsigned_abs()));
    let where_ = if clock.ahead_us < 0 {
        "behind"
    } else {
        "ahead"
    };
    format!("{by} {where_}")
}

/// How far two clocks are from each other, at least: what the questions took says nothing.
fn apart(one: ClockOffset, other: ClockOffset) -> Duration {
    let apart = one.ahead_us.abs_diff(other.ahead_us);
    Duration::from_micros(apart.saturating_sub(one.error_us + other.error_us))
}

/// The answers of sentinels, without those that gave none.
fn answers(found: &SentinelEvidence) -> impl Iterator<Item = (&String, &SentinelAnswer)> {
    let answers = found.answers.iter();
    answers.filter_map(|(place, answer)| answer.as_ref().ok().map(|answer| (place, answer)))
}

pub(super) fn sentinels(evidence: &Evidence, found: &SentinelEvidence) -> Finding {
    let check = Check("sentinels", Group::Network);
    let (asked, name) = (found.answers.len(), &found.primary);
    let answered = answers(found).count();
    let silent: Vec<(&str, String)> = found
        .answers
        .iter()
        .filter_map(|(place, answer)| {
            let why = answer.as_ref().err()?;
            Some((place.as_str(), why.to_string()))
        })
        .collect();
    let Some((first, answer)) = answers(found).next() else {
        // A wrong name or password says more than silence.
        let told = silent.iter().map(|(_, why)| why.as_str());
        let told = told
            .clone()
            .find(|why| !is_silence(why))
            .or(told.clone().next());
        let why = told.unwrap_or_default();
        return match why.split_once("; ") {
            None if why.contains("password for the sentinels") => check.fail(
                why,
                "correct sentinel_password in the URL, or the file that it names",
            ),
            Some((message, fix)) if !is_silence(why) => check.fail(message, fix),
            _ => check.fail(
                format!("none of {asked} answers: {why}"),
                "start them, or correct their addresses in the URL",
            ),
        };
    };
    if let Some((other, differs)) = answers(found).find(|(_, it)| it.primary != answer.primary) {
        return check.fail(
            format!(
                "{first} says that {name} is {}, {other} says {}",
                answer.primary, differs.primary
            ),
            "if this lasts longer than a failover, see the sentinels' logs",
        );
    }
    let is_down = answer.flags.contains("down") && evidence.connected.is_err();
    let (known, quorum) = (known(found), quorum(found));
    let down = if is_down { ", which is down" } else { "" };
    let message = format!("{answered} of {asked} agree on {}{down}", answer.primary);
    let finding = if quorum > known {
        check.fail(
            format!("{message}, but the quorum of {quorum} is more than the {known} there are"),
            format!(
                "{} SENTINEL SET {name} quorum {}{EACH}",
                sentinel_cli(first),
                known / 2 + 1
            ),
        )
    } else if let Some((_, why)) = silent.first() {
        let why = why.strip_prefix("can't reach ").unwrap_or(why);
        let places: Vec<&str> = silent.iter().map(|(place, _)| *place).collect();
        let (give, fix) = match places.len() {
            1 => ("gives", "start it, or correct its address in the URL"),
            _ => ("give", "start them, or correct their addresses in the URL"),
        };
        check.warn(
            format!("{message}; {} {give} no answer: {why}", places.join(", ")),
            fix,
        )
    } else if is_down {
        check.warn(message, "start it, or wait for the failover")
    } else if known < 3 {
        check.warn(
            format!("{message}; {known} in all, so one that fails prevents a failover"),
            "run three or more, on hosts of their own",
        )
    } else {
        check.ok(format!("{message}; quorum {quorum} of {known}"))
    };
    finding.with("quorum", quorum).with("known", known)
}

/// Follows a command for one sentinel, as they don't tell each other of their settings.
const EACH: &str = "  # on each sentinel";

fn is_silence(why: &str) -> bool {
    why.starts_with("can't reach")
}

/// How many sentinels there are.
fn known(found: &SentinelEvidence) -> u64 {
    let known = answers(found).map(|(_, it)| it.sentinels);
    known.max().unwrap_or(0)
}

fn quorum(found: &SentinelEvidence) -> u64 {
    answers(found).map(|(_, it)| it.quorum).max().unwrap_or(0)
}

/// Why no failover is possible now.
fn too_few(found: &SentinelEvidence) -> Option<String> {
    let (known, quorum) = (known(found), quorum(found));
    // That is said by the other check.
    if quorum > known {
        return None;
    }
    let count = |many: usize| u64::try_from(many).unwrap_or(u64::MAX);
    let answered = count(answers(found).count());
    // The others, which the URL doesn't name, weren't asked.
    let others = known.saturating_sub(count(found.answers.len()));
    let most = (answered + others).min(known);
    let needed = quorum.max(known / 2 + 1);
    if most < needed {
        return Some(format!(
            "{most} of {known} sentinels answer, and a failover needs {needed}"
        ));
    }
    let said = answers(found).find_map(|(place, it)| Some((place, it.no_quorum.as_ref()?)));
    said.map(|(place, why)| format!("{place} says that none can begin: {why}"))
}

/// What begins a command for a sentinel.
fn sentinel_cli(place: &str) -> String {
    let (host, port) = place.rsplit_once(':').unwrap_or((place, "26379"));
    let host = host.trim_matches(['[', ']']);
    match host {
        "localhost" | "127.0.0.1" => format!("redis-cli -p {port}"),
        host => format!("redis-cli -h {host} -p {port}"),
    }
}

/// What sentinels need to elect one of them and to promote a replica, beside the time after which they take
/// the primary for dead.
const ELECTION: Duration = Duration::from_secs(2);

pub(super) fn failover(found: &SentinelEvidence, measure: Measure) -> Finding {
    let check = Check("failover", Group::Network);
    let slowest = answers(found).max_by_key(|(_, it)| it.down_after);
    let Some((place, slowest)) = slowest else {
        return check.unknown(&Unknown::NotAsked);
    };
    if let Some(why) = too_few(found) {
        return check.fail(
            format!("if the primary dies none follows: {why}"),
            "start the sentinels that don't answer",
        );
    }
    let down_after = slowest.down_after;
    let (name, ttl) = (&found.primary, measure.ttl);
    let again = 2 * slowest.failover_timeout;
    let message = format!(
        "begins {} after the primary's death, is retried after {}",
        format_duration(down_after),
        format_duration(again)
    );
    // A lease was last renewed up to a third of its time before.
    let left = ttl.saturating_sub(measure.renewal());
    let finding = if down_after + ELECTION > left {
        let shorter = (ttl / 3).min(Duration::from_secs(5)).as_millis();
        check.warn(
            format!(
                "{message}: leases of {} may end before",
                format_duration(ttl)
            ),
            format!(
                "{} SENTINEL SET {name} down-after-milliseconds {shorter}{EACH}",
                sentinel_cli(place)
            ),
        )
    } else {
        check.ok(message)
    };
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    finding
        .with("down_after_ms", ms(down_after))
        .with("failover_timeout_ms", ms(slowest.failover_timeout))
}
