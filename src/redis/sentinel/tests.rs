//! What sentinels say and what follows, with sentinels that say what a test wants.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::super::nodes::{KnownReplica, PRIORITY, promotable_replicas};
use super::answer::known_replica;
use super::*;
use crate::protocol::{
    Access, Claim, Client, Guard, HoldOutcome, LeaseState, Locks, ReleaseMode, Released, Token, Who,
};
use crate::redis::replication::{Goal, Quorum, Replication};
use crate::redis::server::{Part, UrlOrigin};
use crate::redis::tls::TlsFiles;
use crate::redis::url::Login;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp {
        host: host.into(),
        port,
        tls: false,
    }
}

fn port_of(address: &Address) -> u16 {
    match address {
        Address::Tcp { port, .. } => *port,
        Address::Unix(_) => unreachable!(),
    }
}

fn replica(address: &str) -> KnownReplica {
    KnownReplica {
        address: address.into(),
        priority: PRIORITY,
        is_down: false,
        is_former: false,
    }
}

fn down(address: &str) -> KnownReplica {
    KnownReplica {
        is_down: true,
        ..replica(address)
    }
}

/// A sentinel that names this port, since that failover, and knows as many sentinels as there are in the URL.
fn answer(number: usize, (port, epoch): (u16, u64), of: usize) -> Answer {
    Answer {
        by: format!("s{number}:1"),
        id: format!("id-{number}"),
        address: tcp("h", port),
        epoch,
        sentinels: of,
        down_after: None,
        replicas: Vec::new(),
    }
}

/// The URL names so many sentinels, these have answered, and nothing is heard of the others any more: they have had their
/// time, or not.
fn poll(need: Need, asked: usize, answers: Vec<Answer>, is_late: bool) -> Poll {
    let (_, coming) = channel();
    let now = Instant::now();
    let later = now + Duration::from_secs(60);
    let mut poll = Poll {
        need,
        coming,
        until: now,
        late: if is_late { now } else { later },
        since: 0,
        outdated: now,
        known: 0,
        asked,
        answers: Vec::new(),
        silent: Vec::new(),
    };
    for answer in answers {
        poll.count(Ok(answer));
    }
    poll
}

fn said(of: usize, said: &[(u16, u64)]) -> Vec<Answer> {
    let each = said.iter().enumerate();
    each.map(|(number, said)| answer(number, *said, of))
        .collect()
}

#[test]
fn most_of_the_sentinels_name_the_primary() {
    let words = |need: Need, asked: usize, all: &[(u16, u64)], is_late: bool| {
        let agreed = poll(need, asked, said(asked, all), is_late).wait();
        agreed.map(|agreed| (port_of(&agreed.address), agreed.epoch))
    };
    for (asked, all, agreed) in [
        (3, &[(1, 5), (1, 5), (1, 5)][..], Some((1, 5))),
        (3, &[(9, 99), (1, 5), (1, 6)], Some((1, 5))),
        (3, &[(1, 5), (1, 4)], Some((1, 4))),
        (3, &[(1, u64::MAX), (1, 5), (1, 5)], Some((1, 5))),
        (3, &[(9, 99), (1, 5)], None),
        (3, &[(1, 5)], None),
        (2, &[(1, 5)], None),
        (4, &[(1, 5), (1, 5), (9, 5), (9, 5)], None),
        (5, &[(1, 5), (1, 5), (8, 5), (9, 5)], None),
        (5, &[(1, 5), (1, 5), (1, 5)], Some((1, 5))),
        (1, &[(1, 5)], Some((1, 5))),
        (2, &[], None),
    ] {
        for need in [Need::MostOfUrl, Need::MostOfAll, Need::MostThatAnswer(1)] {
            let found = words(need, asked, all, false);
            assert_eq!(found, agreed, "{need:?}: {asked} {all:?}");
        }
        // That the others are late changes nothing for those two.
        for need in [Need::MostOfUrl, Need::MostOfAll] {
            assert_eq!(words(need, asked, all, true), agreed, "{asked} {all:?}");
        }
    }
    // Once the others have had their time, those count that have answered, if they are enough.
    for (asked, all, agreed) in [
        (2, &[(1, 5)][..], Some((1, 5))),
        (2, &[(9, 99), (1, 5)], None),
        (3, &[(1, 5)], None),
        (5, &[(1, 5), (1, 5)], Some((1, 5))),
        (4, &[(1, 5), (1, 5), (9, 5)], Some((1, 5))),
    ] {
        let need = Need::MostThatAnswer(least(asked));
        assert_eq!(words(need, asked, all, true), agreed, "{asked} {all:?}");
    }
    // Without a password one is enough, and of those that disagree the one since the last failover.
    for (asked, all, agreed) in [
        (3, &[(1, 5)][..], Some((1, 5))),
        (3, &[(1, 4), (2, 5)], Some((2, 5))),
        (3, &[(1, 5), (2, 5)], None),
        (5, &[(1, 5), (1, 5), (2, 6)], Some((1, 5))),
    ] {
        let newest = |is_late| words(Need::Newest, asked, all, is_late);
        assert_eq!(newest(true), agreed, "{asked} {all:?}");
        assert_eq!(newest(false), None);
    }
}

#[test]
fn a_sentinel_that_the_url_names_twice_has_one_vote() {
    // By its name and by its address.
    let twice = |port| {
        let by_name = answer(0, (port, 5), 3);
        let by_address = Answer {
            by: "10.0.0.1:1".into(),
            ..by_name.clone()
        };
        [by_name, by_address]
    };
    for need in [Need::MostOfAll, Need::MostThatAnswer(2)] {
        let liar = twice(9).into_iter().chain([answer(1, (1, 5), 3)]);
        assert_eq!(poll(need, 3, liar.collect(), true).wait(), None, "{need:?}");
        let honest = twice(1).into_iter().chain([answer(1, (1, 5), 2)]);
        let agreed = poll(need, 3, honest.collect(), false).wait();
        let port = agreed.map(|agreed| port_of(&agreed.address));
        assert_eq!(port, Some(1), "{need:?}");
    }
}

/// A primary and the replica r2 are cut off from r3 together with one of three sentinels, which then forgets all others: it
/// has restarted without its file, or was reset. To it, r2 is all that there is.
#[test]
fn the_list_of_a_sentinel_that_was_reset_behind_a_cut_is_not_the_list_of_the_replicas() {
    let reset = Answer {
        replicas: vec![replica("r2:1")],
        sentinels: 1,
        ..answer(0, (1, 0), 1)
    };
    let whole = |number| Answer {
        replicas: vec![replica("r2:1"), replica("r3:1")],
        ..answer(number, (1, 0), 3)
    };
    let replicas = |asked, answers: Vec<Answer>| {
        let agreed = poll(Need::MostOfAll, asked, answers, true).wait();
        agreed.map(|agreed| agreed.replicas)
    };
    assert_eq!(replicas(3, vec![reset.clone()]), None);
    // Nor where the URL names no others, as long as any of those that answer knows better.
    let knows = Answer {
        sentinels: 3,
        ..reset.clone()
    };
    assert_eq!(replicas(1, vec![knows.clone()]), None);
    let error = poll(Need::MostOfAll, 1, vec![knows], true).error("main");
    assert_eq!(error.kind, ErrorKind::Config);
    let words = error.to_string();
    assert!(words.contains("the URL names only 1 of them"), "{words}");
    // What each of most of them lists counts.
    let both = replicas(3, vec![reset.clone(), whole(1)]);
    assert_eq!(both.unwrap(), ["r2:1", "r3:1"]);
    // Of five, two are no majority, whatever they know of each other.
    let few = |number| Answer {
        sentinels: 2,
        ..whole(number)
    };
    assert_eq!(replicas(5, vec![few(0), few(1)]), None);
    // Nor are two of the three in the URL, where a third one knows of five.
    let many = Answer {
        sentinels: 5,
        ..whole(1)
    };
    assert_eq!(replicas(3, vec![reset, many]), None);
}

#[test]
fn sentinels_that_forget_the_others_are_no_majority_of_those_there_were() {
    let agrees = |known| {
        let reset = [0, 1].map(|number| answer(number, (1, 5), 1));
        let mut poll = poll(Need::MostOfAll, 3, reset.into(), true);
        poll.known = known;
        poll.wait().is_some()
    };
    assert!(agrees(3));
    assert!(!agrees(5));
}

#[test]
fn a_replica_counts_unless_most_sentinels_take_it_for_down() {
    let backup = KnownReplica {
        priority: 0,
        ..replica("backup:1")
    };
    let first = [replica("up:1"), backup, down("down:1"), replica("reader:0")];
    let second = [down("down:1"), replica("new:1")];
    let third = [replica("down:1")];
    for (lists, sentinels, expected) in [
        (&[&first[..]][..], 1, &["up:1"][..]),
        (&[&first], 3, &["up:1", "down:1"]),
        (&[&first, &second], 3, &["up:1", "new:1"]),
        (&[&first, &third], 3, &["up:1", "down:1"]),
        (&[&first, &second], 4, &["up:1", "down:1", "new:1"]),
    ] {
        assert_eq!(promotable_replicas(lists, sentinels), expected);
    }
    // One that names it twice is one.
    let twice = [down("down:1"), down("down:1")];
    assert_eq!(promotable_replicas(&[&twice], 2), ["down:1"]);
}

#[test]
fn a_former_primary_that_is_back_counts_as_a_replica_when_it_follows() {
    let listed = |role: &str, host: &str| {
        let fields = format!("ip old port 1 role-reported {role} master-host {host}");
        let text = |field: &str| redis::Value::BulkString(field.into());
        known_replica(&redis::Value::Array(fields.split(' ').map(text).collect()))
    };
    let counts = |role: &str, host: &str| {
        let list = [replica("other:1"), listed(role, host)];
        promotable_replicas(&[&list, &list], 3).len() == 2
    };
    // Up, not asked yet; a primary, as it was; and when it was demoted.
    assert!(counts("slave", "?"));
    assert!(!counts("master", "?"));
    assert!(counts("slave", "new"));
    // A replica that is just being promoted has followed the primary: without it nothing counts there.
    assert!(counts("master", "primary"));
    // Where all others have a larger number, it would be promoted first.
    let later = KnownReplica {
        priority: 200,
        ..replica("other:1")
    };
    let lists = [later, listed("master", "?")];
    assert_eq!(promotable_replicas(&[&lists, &lists], 3).len(), 2);
    // One sentinel alone that sees it so leaves it in.
    let lists = [[listed("master", "?")], [listed("slave", "new")]];
    assert_eq!(promotable_replicas(&[&lists[0], &lists[1]], 3), ["old:1"]);
}

#[test]
fn a_sentinel_that_replaces_the_primary_lists_the_next_one_as_no_replica_of_itself() {
    let leader = Answer {
        replicas: vec![replica("h:1"), replica("h:3")],
        ..answer(0, (1, 6), 1)
    };
    let agreed = poll(Need::MostOfAll, 1, vec![leader], false).wait();
    assert_eq!(agreed.unwrap().replicas, ["h:3"]);
}

#[test]
fn sentinels_that_were_made_anew_are_believed_at_once_when_they_are_most_and_alone_later() {
    // Most have said before that there has been a failover of the epoch 1.
    let anew = |asked, count| {
        let answers = (0..count).map(|number| answer(number, (1, 0), asked));
        let mut anew = poll(Need::Newest, asked, answers.collect(), true);
        anew.since = 1;
        anew.until = Instant::now() + Duration::from_secs(60);
        anew.outdated = Instant::now() + Duration::from_millis(50);
        let (sender, coming) = channel();
        anew.coming = coming;
        let began = Instant::now();
        let agreed = anew.wait();
        drop(sender);
        let is_late = began.elapsed() >= Duration::from_millis(50);
        (agreed.is_some(), is_late)
    };
    assert_eq!(anew(3, 2), (true, false));
    assert_eq!(anew(3, 1), (true, true));
}

#[test]
fn a_sentinel_that_is_quick_isnt_a_majority_while_others_are_outstanding() {
    for asked in [2, 3, 5] {
        let need = Need::MostThatAnswer(least(asked));
        let (sender, coming) = channel();
        let mut quick = poll(need, asked, said(asked, &[(9, 99)]), false);
        quick.coming = coming;
        assert!(quick.wait().is_none(), "{asked}");
        quick.until = Instant::now() + Duration::from_secs(60);
        drop(sender);
        assert_eq!(quick.wait().is_some(), asked == 2, "{asked}");
    }
}

#[test]
fn an_epoch_is_known_when_most_sentinels_have_reached_it() {
    for (of, said, known) in [
        (1, &[7][..], 7),
        (2, &[7], 0),
        (2, &[7, 5], 5),
        (3, &[u64::MAX], 0),
        (3, &[5, u64::MAX, 5], 5),
        (3, &[5, u64::MAX], 5),
        (3, &[6, 5, 6], 6),
        (4, &[6, 6, 5], 5),
        (5, &[6, 6], 0),
    ] {
        let reached = heard::reached(said.iter().copied(), of);
        assert_eq!(reached, known, "{of} {said:?}");
    }
}

/// What a sentinel says from now on.
#[derive(Clone)]
struct Says {
    port: u16,
    epoch: u64,
    /// How many others it knows of.
    others: usize,
    replicas: Vec<&'static str>,
    after: Duration,
}

/// A sentinel that says what it is told to.
#[derive(Clone)]
struct Fake {
    server: Arc<Server>,
    says: Arc<Mutex<Says>>,
    /// How many connections it has had.
    asked: Arc<AtomicUsize>,
}

fn server(at: u16, part: Part) -> Arc<Server> {
    Arc::new(Server::new(
        (tcp("127.0.0.1", at), part),
        (Login::default(), 0),
        UrlOrigin::default(),
        TlsFiles::default(),
        Duration::from_secs(20),
        "",
    ))
}

/// The words of the first request among these bytes, and where it ends; `None` before it is complete.
fn request(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let line = |from: usize| {
        let length = bytes[from..].windows(2).position(|two| two == b"\r\n")?;
        let text = std::str::from_utf8(&bytes[from + 1..from + length]).ok()?;
        Some((text.parse::<usize>().ok()?, from + length + 2))
    };
    let (number, mut at) = line(0)?;
    let mut words = Vec::new();
    for _ in 0..number {
        let (length, start) = line(at)?;
        at = start + length + 2;
        let word = bytes.get(start..at)?;
        words.push(String::from_utf8_lossy(&word[..length]).into_owned());
    }
    Some((words, at))
}

/// A server that answers each request, word by word, in this way; its port.
fn serve(answer: impl Fn(&[String]) -> String + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                let (mut bytes, mut unread) = ([0; 4096], Vec::new());
                while let Ok(read @ 1..) = client.read(&mut bytes) {
                    unread.extend_from_slice(&bytes[..read]);
                    while let Some((words, end)) = request(&unread) {
                        unread.drain(..end);
                        let _ = client.write_all(answer(&words).as_bytes());
                    }
                }
            });
        }
    });
    port
}

fn array(words: &str) -> String {
    let words = words.split(' ');
    let each = words.clone().map(|it| format!("${}\r\n{it}\r\n", it.len()));
    format!("*{}\r\n{}", words.count(), each.collect::<String>())
}

fn fake(number: usize, says: Says) -> Fake {
    let says = Arc::new(Mutex::new(says));
    let asked = Arc::new(AtomicUsize::new(0));
    let (told, count) = (Arc::clone(&says), Arc::clone(&asked));
    let port = serve(move |words| {
        let says = lock(&told).clone();
        let port = says.port;
        match words.get(1).map(String::as_str) {
            Some("MASTER") => {
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(says.after);
                let (epoch, others) = (says.epoch, says.others);
                array(&format!(
                    "ip 127.0.0.1 port {port} config-epoch {epoch} num-other-sentinels {others}"
                ))
            }
            Some("GET-MASTER-ADDR-BY-NAME") => array(&format!("127.0.0.1 {port}")),
            Some("MYID") => format!("$3\r\ns-{number}\r\n"),
            _ => {
                let each = says.replicas.iter();
                let each = each.map(|port| array(&format!("ip 127.0.0.1 port {port}")));
                let count = says.replicas.len();
                format!("*{count}\r\n{}", each.collect::<String>())
            }
        }
    });
    Fake {
        server: server(port, Part::Sentinel),
        says,
        asked,
    }
}

/// Three sentinels that name this port, since the failover with the number 5.
fn three(port: u16) -> (Sentinels, Vec<Fake>) {
    let says = Says {
        port,
        epoch: 5,
        others: 2,
        replicas: vec!["7", "8"],
        after: Duration::ZERO,
    };
    let fakes: Vec<Fake> = (0..3).map(|number| fake(number, says.clone())).collect();
    let nodes = fakes.iter().map(|fake| Arc::clone(&fake.server)).collect();
    (Sentinels::new(nodes, "main".into()), fakes)
}

fn tell(fakes: &[Fake], port: u16, epoch: u64) {
    for fake in fakes {
        let mut says = lock(&fake.says);
        (says.port, says.epoch) = (port, epoch);
    }
}

fn slow_down(fakes: &[Fake], after: Duration) {
    for fake in fakes {
        lock(&fake.says).after = after;
    }
}

/// The locks at the primary that these name, and a claim to one.
fn locks(fakes: &[Fake]) -> (Locks, Claim) {
    let nodes: Vec<String> = fakes.iter().map(|fake| fake.server.to_string()).collect();
    let access = Access {
        url: &format!("redis-sentinel://{}/main", nodes.join(",")),
        timeout: LONG,
        ..Access::default()
    };
    let locks = Locks::new(access, None, 0).unwrap();
    let token = Token::read("t:h:1".into()).expect("a token");
    let claim = Claim::resume(locks.lock("a".parse().expect("a name")), token);
    (locks, claim)
}

fn asked(fakes: &[Fake]) -> usize {
    let each = fakes.iter().map(|fake| fake.asked.load(Ordering::Relaxed));
    each.sum()
}

/// How a script answers that has released a lock, renewed it, or that finds it gone.
const DONE: &str = "*1\r\n:1\r\n";
const RENEWED: &str = "*6\r\n:1\r\n:900\r\n:1\r\n:1\r\n:1\r\n$-1\r\n";
const LOST: &str = "*3\r\n:0\r\n$-1\r\n$-1\r\n";

/// A primary without replicas that has one answer for each script; and how many scripts it has got.
fn primary_that_answers(answer: &'static str) -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let scripts = Arc::clone(&count);
    let port = serve(move |words| match words[0].as_str() {
        "ROLE" => "*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n".into(),
        "WAIT" => ":0\r\n".into(),
        _ => {
            scripts.fetch_add(1, Ordering::Relaxed);
            answer.into()
        }
    });
    (port, count)
}

fn primary() -> u16 {
    primary_that_answers(DONE).0
}

/// A port at which nobody listens.
fn dead() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// It matters which replicas there are, as under `REDLOCK_SYNC=all`; or it doesn't.
const ALL: bool = true;
const ANY: bool = false;

const LONG: Duration = Duration::from_secs(20);

fn open(sentinels: &Sentinels, names_each: bool) -> Result<Connection, Error> {
    open_within(LONG, sentinels, names_each)
}

fn open_within(
    within: Duration,
    sentinels: &Sentinels,
    names_each: bool,
) -> Result<Connection, Error> {
    let like = server(1, Part::Primary);
    sentinels.open(&like, within, within, names_each)
}

/// What a grant over this connection waits for under `REDLOCK_SYNC=all`.
fn goal(sentinels: &Sentinels, connection: &Connection) -> Goal {
    let at = connection.server().address();
    sentinels.replicas().goal(Quorum::All, at)
}

#[test]
fn a_server_that_says_that_it_is_a_replica_is_not_the_primary_whatever_sentinels_say() {
    let (sentinels, fakes) = three(serve(|_| "*3\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n".into()));
    let error = open(&sentinels, ANY).map(drop).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoPrimary);
    tell(&fakes, primary(), 5);
    assert!(open(&sentinels, ANY).is_ok());
}

#[test]
fn a_start_without_a_password_and_without_sync_all_costs_one_question() {
    let (sentinels, fakes) = three(primary());
    open(&sentinels, ANY).unwrap();
    assert_eq!(asked(&fakes), 1);
}

#[test]
fn under_sync_all_most_sentinels_name_the_primary_and_its_replicas_for_each_round() {
    let (sentinels, fakes) = three(primary());
    let connection = open(&sentinels, ALL).unwrap();
    let both = ["127.0.0.1:7", "127.0.0.1:8"].map(String::from);
    assert_eq!(goal(&sentinels, &connection), Goal::Each(both.into()));
    // One that is added, by a single one of them.
    lock(&fakes[1].says).replicas = vec!["9"];
    assert!(!sentinels.know_newer_primary(connection.server(), LONG, ALL));
    let Goal::Each(listed) = goal(&sentinels, &connection) else {
        panic!("they are listed");
    };
    // By the first two to answer, or by others.
    assert!(listed.len() >= 2, "{listed:?}");
    // Two are made anew behind a cut, and name another one.
    tell(&fakes[1..], primary(), 0);
    assert!(!sentinels.know_newer_primary(connection.server(), LONG, ALL));
    assert!(!matches!(goal(&sentinels, &connection), Goal::Each(_)));
}

#[test]
fn under_sync_all_nothing_counts_while_most_sentinels_are_silent() {
    let (sentinels, fakes) = three(primary());
    let connection = open(&sentinels, ALL).unwrap();
    slow_down(&fakes[1..], LONG);
    let second = Duration::from_secs(1);
    assert!(!sentinels.know_newer_primary(connection.server(), second, ALL));
    let Goal::None(why) = goal(&sentinels, &connection) else {
        panic!("nothing counts");
    };
    assert!(why.contains("REDLOCK_SYNC=all needs 2"), "{why}");
    let opened = open_within(second, &sentinels, ALL);
    assert_eq!(opened.map(drop).unwrap_err().kind, ErrorKind::NoPrimary);
}

#[test]
fn a_holder_follows_a_later_failover_and_no_sentinel_back_to_the_old_primary() {
    let (old, new) = (primary(), primary());
    let (sentinels, fakes) = three(old);
    let connection = open(&sentinels, ANY).unwrap();
    let another = |connection: &Connection| {
        (0..3).any(|_| sentinels.know_newer_primary(connection.server(), LONG, ANY))
    };
    assert!(!another(&connection));
    // The one that replaces it says so first.
    tell(&fakes[..1], new, 6);
    assert!(!another(&connection));
    tell(&fakes, new, 6);
    assert!(another(&connection));
    let connection = open(&sentinels, ANY).unwrap();
    assert_eq!(port_of(connection.server().address()), new);
    // Most of them are behind it, or were made anew.
    for epoch in [5, 0, 6] {
        tell(&fakes[1..], old, epoch);
        assert!(!another(&connection), "{epoch}");
    }
    tell(&fakes, old, 7);
    assert!(another(&connection));
}

#[test]
fn what_a_holder_has_found_of_the_next_primary_counts_for_one_connection() {
    let (old, new, newest) = (primary(), primary(), primary());
    let (sentinels, fakes) = three(old);
    let connection = open(&sentinels, ANY).unwrap();
    tell(&fakes, new, 6);
    assert!(sentinels.know_newer_primary(connection.server(), LONG, ANY));
    let connection = open(&sentinels, ANY).unwrap();
    assert_eq!(port_of(connection.server().address()), new);
    tell(&fakes, newest, 7);
    let connection = open(&sentinels, ANY).unwrap();
    assert_eq!(port_of(connection.server().address()), newest);
}

/// A primary that is replaced when it has answered a release, and is followed by as many replicas as each answer to `ROLE`
/// counts in turn; what it says to each `WAIT` in turn, and to a script before the release, if anything; and what the next
/// primary says to the release. How often that one was asked for it, and how that came out.
fn released_while_replaced(
    followers: Vec<usize>,
    waited: Vec<&'static str>,
    before: Option<&'static str>,
    next: &'static str,
) -> (usize, Result<(Released, bool), Error>) {
    let (next, repeated) = primary_that_answers(next);
    let (_, fakes) = three(0);
    let told = fakes.clone();
    let (roles, waits) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let first = Mutex::new(before);
    let old = serve(move |words| match words[0].as_str() {
        "ROLE" => {
            let turn = roles.fetch_add(1, Ordering::Relaxed);
            let number = followers[turn.min(followers.len() - 1)];
            let each = (7..7 + number).map(|port| array(&format!("127.0.0.1 {port} 7")));
            let each: String = each.collect();
            format!("*3\r\n$6\r\nmaster\r\n:7\r\n*{number}\r\n{each}")
        }
        "WAIT" => {
            let turn = waits.fetch_add(1, Ordering::Relaxed);
            waited[turn.min(waited.len() - 1)].into()
        }
        _ => {
            if let Some(before) = lock(&first).take() {
                return before.into();
            }
            tell(&told, next, 6);
            DONE.into()
        }
    });
    tell(&fakes, old, 5);
    let (locks, claim) = locks(&fakes);
    let mut client = locks.open().unwrap();
    let claims = [claim];
    if before == Some(RENEWED) {
        Claim::renew_all(&claims, &mut client, Duration::from_secs(1)).unwrap();
    }
    let mode = ReleaseMode::Finished {
        outcome: HoldOutcome::Status(0),
        keep_for: Duration::ZERO,
    };
    let released = claims[0].release_or_retry(&mut client, &mode, LONG, None, || {});
    (repeated.load(Ordering::Relaxed), released)
}

#[test]
fn a_release_is_repeated_at_the_next_primary_where_no_replica_may_have_it() {
    const DEMOTED: &str = "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n";
    const UNKNOWN: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    const NONE: &str = ":0\r\n";
    for (what, followers, waited, before, next) in [
        ("it is demoted", vec![1], vec![DEMOTED], None, DONE),
        ("a new replica", vec![0, 1], vec![NONE], Some(RENEWED), DONE),
        // Nothing was written before the script was sent: that, the replica has.
        ("EVAL", vec![1], vec![":1\r\n", NONE], Some(UNKNOWN), DONE),
        ("no connection", vec![1], vec!["no reply\r\n"], None, DONE),
        // It was acknowledged, and so is no loss, where the next primary never had the lock.
        ("no loss", vec![1], vec![NONE], None, LOST),
    ] {
        let (repeated, released) = released_while_replaced(followers, waited, before, next);
        let is_released = matches!(released, Ok((Released::Now, true)));
        assert!(is_released, "{what}: {released:?}");
        assert!(repeated == 1 || next == LOST, "{what}: {repeated}");
    }
}

#[test]
fn a_check_or_a_guard_at_another_server_than_the_granter_finds_no_loss_before_a_later_failover() {
    const EXTENDED: &str = "*7\r\n:1\r\n:900\r\n:1000\r\n:1\r\n:1\r\n:1\r\n$-1\r\n";
    let second = Duration::from_secs(1);
    for (answer, is_guard) in [(RENEWED, false), (EXTENDED, true)] {
        let (old, new) = (primary_that_answers(answer).0, primary_that_answers(LOST).0);
        let (_, fakes) = three(old);
        let (locks, claim) = locks(&fakes);
        let mut client = locks.open().unwrap();
        let guards = [Guard::of(claim.clone(), "a1", &Who::default())];
        let claims = [claim];
        let look = |client: &mut Client| {
            if is_guard {
                Guard::extend_all(&guards, client)
            } else {
                Claim::check_all(&claims, client, second)
            }
        };
        let granted = if is_guard {
            look(&mut client).map(drop)
        } else {
            Claim::renew_all(&claims, &mut client, second).map(drop)
        };
        assert!(granted.is_ok(), "{granted:?}");
        // Most of the sentinels were made anew, say.
        tell(&fakes, new, 5);
        client.disconnect();
        let kind = look(&mut client).map(drop).unwrap_err().kind;
        assert_eq!(kind, ErrorKind::NoPrimary, "{is_guard}");
        tell(&fakes, new, 6);
        let looked = look(&mut client);
        let is_lost = matches!(looked.as_deref(), Ok([LeaseState::Lost(_)]));
        assert!(is_lost, "{is_guard}: {looked:?}");
    }
}

#[test]
fn whichever_way_a_client_has_come_by_its_connection_a_renewal_waits_for_the_replicas() {
    let (_, fakes) = three(primary_that_answers(RENEWED).0);
    let (locks, claim) = locks(&fakes);
    let replication = Replication {
        quorum: Quorum::AtLeast(1),
        timeout: Duration::from_millis(50),
    };
    let locks = locks.replicated(replication).unwrap();
    let claims = [claim];
    for (way, mut client) in [
        ("opened", locks.open().unwrap()),
        ("another", locks.open().unwrap().another()),
        ("handed over", locks.open().unwrap().hand_over()),
    ] {
        let renewed = Claim::renew_all(&claims, &mut client, Duration::from_secs(1));
        let kind = renewed.map(drop).unwrap_err().kind;
        assert_eq!(kind, ErrorKind::NotReplicated, "{way}");
    }
}

#[test]
fn a_primary_that_most_sentinels_do_not_name_in_time_may_have_been_replaced() {
    let (primary, other) = (primary(), primary());
    let (sentinels, fakes) = three(primary);
    let connection = open(&sentinels, ANY).unwrap();
    let is_alone = || sentinels.is_alone(connection.server(), LONG);
    assert!(!is_alone());
    tell(&fakes[..1], other, 6);
    assert!(!is_alone());
    tell(&fakes[1..2], other, 6);
    assert!(is_alone());
    tell(&fakes, primary, 7);
    assert!(!is_alone());
    slow_down(&fakes[..2], LONG);
    assert!(is_alone());
}

#[test]
fn that_a_lock_is_lost_counts_where_it_was_granted_or_after_a_later_failover() {
    let (old, new) = (primary(), primary());
    let (sentinels, fakes) = three(old);
    let connection = open(&sentinels, ANY).unwrap();
    let granter = Arc::clone(connection.server());
    let other = server(new, Part::Primary);
    // A process that has had nothing granted believes any.
    assert!(sentinels.believe_loss(&other, LONG));
    sentinels.note_granter(&granter);
    assert!(sentinels.believe_loss(&granter, LONG));
    assert!(!sentinels.believe_loss(&other, LONG));
    tell(&fakes[..1], new, 6);
    assert!(!sentinels.believe_loss(&other, LONG));
    tell(&fakes[1..], new, 5);
    assert!(!sentinels.believe_loss(&other, LONG));
    tell(&fakes, new, 6);
    assert!(sentinels.believe_loss(&other, LONG));
}

#[test]
fn a_sentinel_that_is_far_away_has_as_long_as_it_has_taken() {
    let (sentinels, fakes) = three(primary());
    slow_down(&fakes, LEAST * 2);
    let connection = open(&sentinels, ALL).unwrap();
    assert!(!sentinels.know_newer_primary(connection.server(), LONG, ALL));
    assert!(!matches!(goal(&sentinels, &connection), Goal::None(_)));
}

#[test]
fn while_the_primary_is_dead_each_try_asks_one_sentinel() {
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hung.local_addr().unwrap().port();
    let (sentinels, fakes) = three(port);
    let open_soon = || open_within(Duration::from_secs(1), &sentinels, ANY).map(drop);
    assert!(open_soon().is_err());
    let before = asked(&fakes);
    assert!(open_soon().is_err());
    assert_eq!(asked(&fakes) - before, 1);
    for names_each in [ANY, ALL] {
        let (sentinels, fakes) = three(dead());
        assert!(open(&sentinels, names_each).is_err());
        let before = asked(&fakes);
        for _ in 0..6 {
            let error = open(&sentinels, names_each).map(drop).unwrap_err();
            assert_eq!(error.kind, ErrorKind::NoPrimary);
        }
        assert_eq!(asked(&fakes) - before, 6);
        // As soon as one names another primary, all are asked.
        tell(&fakes, primary(), 6);
        assert!(open(&sentinels, names_each).is_ok());
    }
}
