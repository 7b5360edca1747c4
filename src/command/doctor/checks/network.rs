//! The network: the connection, TLS, sentinels, latency, time-outs and clocks. Pure.

use std::time::Duration;

use super::super::evidence::{ClockOffset, Evidence, Unknown, Validity, best_clock};
use super::super::finding::{Check, Finding, Group};
use super::super::fix::{Fix, Repair};
use super::locks::ADD_RULES;
use super::{Measure, config_set, in_parts, micros, rounded_up, short, with_notes};
use crate::protocol::{Error, ErrorKind, Transport};
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
                && found.answered().next().is_none()
            {
                return CONNECTION.unknown(&Unknown::NotAsked);
            }
            let fix = match error.kind {
                ErrorKind::Busy => end_script(evidence),
                _ if error.is_about_rules() && evidence.probes.is_ok() => ADD_RULES.into(),
                _ => match fix {
                    Some(fix) => fix.into(),
                    None => way_in(error.kind, &message).into(),
                },
            };
            CONNECTION.fail(message, fix).with_origin(error.origin())
        }
    }
}

/// The command that ends a script of another client.
fn end_script(evidence: &Evidence) -> Fix {
    let cli = &evidence.redis_cli;
    let notes: Vec<&str> = cli.note().into_iter().collect();
    Repair::EndScript.by(with_notes(&cli.admin_line(&["SCRIPT", "KILL"]), &notes))
}

/// What to do where there is no connection, for this reason.
fn way_in(kind: ErrorKind, why: &str) -> &'static str {
    let is = |part| why.contains(part);
    match kind {
        ErrorKind::Refused => "correct the user or the password",
        _ if is("connection refused") => "start Redis there, or correct the address in the URL",
        _ if is("socket") => "start Redis, or correct the path in the URL",
        _ if is("no such host") => "correct the host in the URL, or its name in DNS",
        _ if is("looked up") || is("no address of host") => {
            "check whether this host's name servers answer"
        }
        _ if is("no answer in time") => {
            "open the port if a firewall drops packets; restart the server if it hangs"
        }
        _ if is("client certificate") => "use --tls-cert and --tls-key",
        _ if is("connection was closed") => {
            "see the log of the server, or of the proxy in front of it"
        }
        _ => "correct the URL, or the network between this host and that one",
    }
}

pub(super) fn tls(evidence: &Evidence, measure: Measure) -> Finding {
    let host = match &evidence.transport {
        Transport::Socket => return TLS.moot("a socket of this host"),
        Transport::Plain { is_loopback: true } => return TLS.moot("not used within this host"),
        Transport::Plain { is_loopback: false } if evidence.connected.is_err() => {
            return TLS.unknown(&Unknown::NotAsked);
        }
        Transport::Plain { is_loopback: false } => {
            return TLS.ok("unencrypted: anyone on the path can read it (rediss:// encrypts)");
        }
        Transport::Tls { host } => host,
    };
    match (&evidence.connected, evidence.certificate) {
        (Err(error), _) if is_about_tls(evidence, error) => {
            let (message, fix) = in_parts(evidence, error);
            let fix = fix.unwrap_or_else(|| "correct the URL".into());
            TLS.fail(message, fix).with_origin(error.origin())
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
    let (what, fix) = ("redlock's own certificate (--tls-cert)", "renew it".into());
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
    let trips = known!(LATENCY, &evidence.round_trips);
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
        let fix = format!(
            "a TTL that leaves room for this latency: --ttl {}",
            longer(3 * SLOW)
        );
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

/// Whether what needs several packets arrives.
pub(super) fn packets(evidence: &Evidence) -> Finding {
    let check = Check("packets", Group::Network);
    match &evidence.long_answer {
        Ok(()) => check.ok("an answer of 4 kB arrives"),
        Err(Unknown::NoAnswer) => check.fail(
            "short answers arrive, but one of 4 kB doesn't: full packets are lost on the way",
            "let ICMP through (fragmentation needed), or lower the MTU of this host's interface",
        ),
        Err(_) => check.moot("not known"),
    }
}

pub(super) fn timeouts(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("timeouts", Group::Network);
    let (ours, renewal) = (evidence.timeout, measure.renewal());
    let message = format!("--connect-timeout {}", format_duration(ours));
    if ours > renewal {
        let less = format_duration(rounded_down(renewal));
        return check.warn(
            format!(
                "{message} is longer than a third of the TTL: if the server doesn't answer, the next renewals are already due before one attempt times out"
            ),
            format!("use --connect-timeout {less}, or a longer TTL"),
        );
    }
    let idle = match evidence.config.get("timeout") {
        Some(Ok(text)) => text.parse().map(Duration::from_secs).unwrap_or_default(),
        _ => return check.ok(message),
    };
    if idle > Duration::ZERO && idle <= renewal {
        return check.warn(
            format!(
                "the server closes connections that are idle for {}: each renewal needs a new connection",
                format_duration(idle)
            ),
            config_set(evidence, Repair::KeepIdle, "timeout", "0"),
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
    let trips = known!(check, &evidence.round_trips);
    let Some(server) = best_clock(trips) else {
        return check.unknown(&Unknown::Denied("TIME"));
    };
    let mut message = if server.ahead_us.unsigned_abs() <= server.error_us {
        "the server's clock agrees with this host's".to_owned()
    } else {
        format!("the server's clock is {} this host's", ahead(server))
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
            "{message}; the clocks of the other servers agree within {}",
            short((*most).max(LEAST_APART))
        );
    }
    if let Some(first) = silent.first() {
        let others = match silent.len() {
            1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        message = format!("{message}; the clock of {first}{others} isn't known");
    }
    let sync = "synchronise the hosts' clocks (NTP)";
    let finding = match most {
        Some((most, place)) if most >= measure.ttl / 2 => check.fail(
            format!(
                "the clock of {place} is {} from the primary's: after a failover, leases of {} end too early or too late",
                short(most),
                format_duration(measure.ttl)
            ),
            sync,
        ),
        Some((most, place)) if most >= APART => check.warn(
            format!(
                "the clock of {place} is {} from the primary's: after a failover, leases end too early by that difference",
                short(most)
            ),
            sync,
        ),
        _ if Duration::from_micros(server.ahead_us.unsigned_abs()) >= OWN_APART => check.warn(
            format!("{message}; status and history show the server's time"),
            sync,
        ),
        _ => check.ok(message),
    };
    finding.with("server_ahead_us", server.ahead_us)
}

/// `12 ms ahead of`, `0.3 ms behind`.
fn ahead(clock: ClockOffset) -> String {
    let by = short(Duration::from_micros(clock.ahead_us.unsigned_abs()));
    let where_ = if clock.ahead_us < 0 {
        "behind"
    } else {
        "ahead of"
    };
    format!("{by} {where_}")
}

/// How far two clocks are from each other, at least: what the questions took says nothing.
fn apart(one: ClockOffset, other: ClockOffset) -> Duration {
    let apart = one.ahead_us.abs_diff(other.ahead_us);
    Duration::from_micros(apart.saturating_sub(one.error_us + other.error_us))
}
