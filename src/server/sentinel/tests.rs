//! Tests with fake sentinels, whose answers each test chooses.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;

use super::replicas::{KnownReplica, PRIORITY, promotable_replicas};
use super::*;
use crate::protocol::{Access, Claim, HoldOutcome, Locks, ReleaseMode, Released, Token};
use crate::server::endpoint::Part;
use crate::server::replication::{Quorum, Replication};

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

/// Returns the list of replicas in a line: `r:1` is an ordinary one, `r:1!` is down, `r:1?` is a former primary that isn't
/// demoted yet, and `r:1=0` has this priority.
fn list_of(line: &str) -> Vec<KnownReplica> {
    let each = line.split_whitespace().map(|word| {
        let (word, priority) = word.split_once('=').unwrap_or((word, ""));
        KnownReplica {
            address: word.trim_end_matches(['!', '?']).into(),
            priority: priority.parse().unwrap_or(PRIORITY),
            is_down: word.ends_with('!'),
            is_former: word.ends_with('?'),
        }
    });
    each.collect()
}

/// Returns the answer of a sentinel that names this port, and knows `of` sentinels, itself included.
fn answer(number: usize, port: u16, of: usize) -> SentinelAnswer {
    SentinelAnswer {
        by: format!("s{number}:1"),
        id: format!("id-{number}"),
        address: tcp("h", port),
        sentinels: of,
        down_after: None,
        replicas: Vec::new(),
        quorum: None,
        is_tilted: false,
    }
}

/// Returns a poll of `asked` sentinels in the URL, of which these have answered, and the others fail.
fn poll(names_each: bool, asked: usize, answers: Vec<SentinelAnswer>) -> Poll {
    let (_, coming) = channel();
    let mut poll = Poll {
        names_each,
        coming,
        until: Instant::now() + LONG,
        expected: 0,
        nodes: asked,
        answers: Vec::new(),
        errors: Vec::new(),
    };
    for answer in answers {
        poll.count(Ok(answer));
    }
    poll
}

/// Returns an answer for each word of a line: the port that a sentinel names, and its id after a slash if it isn't its own.
fn answers(of: usize, line: &str) -> Vec<SentinelAnswer> {
    let each = line.split_whitespace().enumerate().map(|(number, word)| {
        let own = number.to_string();
        let (port, id) = word.split_once('/').unwrap_or((word, &own));
        SentinelAnswer {
            id: format!("id-{id}"),
            ..answer(number, port.parse().unwrap(), of)
        }
    });
    each.collect()
}

#[test]
fn most_of_the_sentinels_of_the_url_name_the_primary_however_few_answer_and_whoever_lies() {
    for (asked, line, agreed) in [
        (3, "1 1 1", Some(1)),
        (3, "9 1 1", Some(1)),
        (3, "1 1", Some(1)),
        (3, "9 1", None),
        (3, "1", None),
        (2, "1", None),
        (2, "1 1", Some(1)),
        (4, "1 1", None),
        (4, "1 1 9 9", None),
        (4, "1 1 9 1", Some(1)),
        (5, "1 1 8 9", None),
        (5, "1 1 1", Some(1)),
        (1, "1", Some(1)),
        (2, "", None),
        // A sentinel that the URL names twice, by its name and by its address, has one vote.
        (3, "9 9/0 1/1", None),
        (3, "1 1/0 1/1", Some(1)),
        // A sentinel that takes the id of another one takes no vote from it, and is no majority of two.
        (3, "9/1 1 1", Some(1)),
        (2, "9/1 1", None),
    ] {
        for names_each in [ANY, ALL] {
            let primary = poll(names_each, asked, answers(asked, line)).wait();
            let port = primary.map(|agreed| port_of(&agreed.address));
            assert_eq!(port, agreed, "{names_each}: {asked} {line}");
        }
    }
}

#[test]
fn an_error_says_how_many_sentinels_answer_and_whether_they_disagree() {
    let few = "only 1 of 3 sentinels named the primary \"main\" in time (s0:1 says h:1), but WHO needs 2; start the others, or make them reachable";
    let split = "the sentinels don't agree where the primary \"main\" is (s0:1 says h:1, s1:1 says h:2), and WHO needs 2 of 3; try again when the failover is over";
    for (names_each, who, ports, expected) in [
        (ANY, "redlock", "1", few),
        (ALL, "REDLOCK_SYNC=all", "1", few),
        (ANY, "redlock", "1 2", split),
    ] {
        let error = poll(names_each, 3, answers(3, ports)).error("main");
        assert_eq!(error.kind, ErrorKind::NoPrimary);
        assert_eq!(error.to_string(), expected.replace("WHO", who));
    }
    let silent = poll(ANY, 3, Vec::new()).error("main");
    assert_eq!(silent.kind, ErrorKind::Unreachable);
}

#[test]
fn sentinels_that_were_cloned_with_one_id_are_one() {
    let clone = |number| SentinelAnswer {
        id: "clone".into(),
        ..answer(number, 1, 1)
    };
    let agreed = poll(ANY, 3, vec![clone(0), clone(1), clone(2)]).wait();
    assert_eq!(agreed.map(|agreed| port_of(&agreed.address)), Some(1));
}

/// A primary and the replica r2 are cut off from r3 together with one of three sentinels. This sentinel then forgets all
/// others, because it has restarted without its file, or was reset: now it knows only r2.
#[test]
fn the_list_of_a_sentinel_that_was_reset_behind_a_cut_is_not_the_list_of_the_replicas() {
    let reset = SentinelAnswer {
        replicas: list_of("r2:1"),
        sentinels: 1,
        ..answer(0, 1, 1)
    };
    let whole = |number| SentinelAnswer {
        replicas: list_of("r2:1 r3:1"),
        ..answer(number, 1, 3)
    };
    let replicas = |asked, answers: Vec<SentinelAnswer>| {
        let agreed = poll(ALL, asked, answers).wait();
        agreed.map(|agreed| agreed.replicas)
    };
    assert_eq!(replicas(3, vec![reset.clone()]), None);
    // Even if the URL names no other sentinels, this one is no majority while it knows more.
    let knows = SentinelAnswer {
        sentinels: 3,
        ..reset.clone()
    };
    assert_eq!(replicas(1, vec![knows.clone()]), None);
    let error = poll(ALL, 1, vec![knows]).error("main");
    assert_eq!(error.kind, ErrorKind::Config);
    let words = error.to_string();
    assert!(words.contains("the URL names only 1 of them"), "{words}");
    // A replica needs only one list of the majority.
    let both = replicas(3, vec![reset.clone(), whole(1)]);
    assert_eq!(both.unwrap(), ["r2:1", "r3:1"]);
    // Two of five aren't a majority, whatever they know of each other.
    let few = |number| SentinelAnswer {
        sentinels: 2,
        ..whole(number)
    };
    assert_eq!(replicas(5, vec![few(0), few(1)]), None);
    // Two of the three in the URL aren't a majority, either, if a third one knows five.
    let many = SentinelAnswer {
        sentinels: 5,
        ..whole(1)
    };
    assert_eq!(replicas(3, vec![reset, many]), None);
}

#[test]
fn sentinels_that_forget_the_others_are_no_majority_of_those_there_were() {
    let agrees = |known| {
        let reset = [0, 1].map(|number| answer(number, 1, 1));
        let mut poll = poll(ALL, 3, reset.into());
        poll.expected = known;
        poll.wait().is_some()
    };
    assert!(agrees(3));
    assert!(!agrees(5));
}

#[test]
fn a_replica_counts_unless_most_sentinels_take_it_for_down_or_for_a_former_primary_behind_others() {
    // The number of sentinels, the lists of some of them, and the replicas that count.
    let rows = "1: up:1 backup:1=0 down:1! reader:0 → up:1
        3: up:1 backup:1=0 down:1! reader:0 → up:1 down:1
        3: up:1 backup:1=0 down:1! reader:0 | down:1! new:1 → up:1 new:1
        3: up:1 backup:1=0 down:1! reader:0 | down:1 → up:1 down:1
        4: up:1 backup:1=0 down:1! reader:0 | down:1! new:1 → up:1 down:1 new:1
        2: down:1! down:1! → down:1
        3: other:1 old:1? | other:1 old:1? → other:1
        3: other:1! old:1? | other:1! old:1? → old:1
        3: other:1=0 old:1? | other:1=0 old:1? → old:1
        3: other:1? old:1? | other:1? old:1? → other:1 old:1
        3: other:1=200 old:1? | other:1=200 old:1? → other:1 old:1";
    for row in rows.lines().map(str::trim) {
        let (lists, expected) = row.split_once(" → ").unwrap();
        let (sentinels, lists) = lists.split_once(": ").unwrap();
        let lists: Vec<_> = lists.split(" | ").map(list_of).collect();
        let lists: Vec<_> = lists.iter().map(Vec::as_slice).collect();
        let promotable = promotable_replicas(&lists, sentinels.parse().unwrap());
        assert_eq!(promotable.join(" "), expected, "{row}");
    }
}

#[test]
fn a_former_primary_counts_as_a_replica_when_it_follows() {
    let listed = |role: &str, host: &str| {
        let fields = format!("ip old port 1 role-reported {role} master-host {host}");
        let text = |field: &str| redis::Value::BulkString(field.into());
        KnownReplica::parse(&redis::Value::Array(fields.split(' ').map(text).collect()))
    };
    let counts = |role: &str, host: &str| {
        let list = [list_of("other:1"), vec![listed(role, host)]].concat();
        promotable_replicas(&[&list, &list], 3).len() == 2
    };
    // Dead or not heard of yet; still a primary; and demoted.
    assert!(!counts("slave", "?"));
    assert!(!counts("master", "?"));
    assert!(counts("slave", "new"));
    // A replica that is just being promoted has followed the primary. Without this replica, none would be left.
    assert!(counts("master", "primary"));
    // A single sentinel that sees a former primary isn't a majority, so the replica is listed.
    let lists = [[listed("master", "?")], [listed("slave", "new")]];
    assert_eq!(promotable_replicas(&[&lists[0], &lists[1]], 3), ["old:1"]);
}

#[test]
fn a_primary_that_a_sentinel_is_replacing_counts_unless_it_is_down() {
    let parsed = |line: &str| {
        let text = |field: &str| redis::Value::BulkString(field.into());
        redis::Value::Array(line.split(' ').map(text).collect())
    };
    let dead = parsed("ip old port 1 flags s_down,o_down,master role-reported master");
    let alive = parsed("ip old port 1 flags master role-reported master");
    assert_eq!(KnownReplica::replaced(&dead, "old:1"), None);
    assert_eq!(KnownReplica::replaced(&parsed("no primary"), "new:1"), None);
    // The leader of a failover, and a sentinel that already knows the result.
    let other = list_of("other:1 old:1!");
    for (primary, expected) in [(dead, &["other:1"][..]), (alive, &["other:1", "old:1"])] {
        let replaced = KnownReplica::replaced(&primary, "new:1");
        let leader: Vec<_> = list_of("other:1").into_iter().chain(replaced).collect();
        assert_eq!(promotable_replicas(&[&leader, &other], 3), expected);
    }
}

#[test]
fn a_sentinel_that_replaces_the_primary_lists_the_next_one_as_no_replica_of_itself() {
    let leader = SentinelAnswer {
        replicas: list_of("h:1 h:3"),
        ..answer(0, 1, 1)
    };
    let agreed = poll(ALL, 1, vec![leader]).wait();
    assert_eq!(agreed.unwrap().replicas, ["h:3"]);
}

#[test]
fn a_sentinel_that_is_quick_is_no_majority_while_others_are_outstanding() {
    for asked in [2, 3, 5] {
        let (_sender, coming) = channel();
        let mut quick = poll(ANY, asked, answers(asked, "9"));
        quick.coming = coming;
        quick.until = Instant::now() + Duration::from_millis(50);
        assert!(quick.wait().is_none(), "{asked}");
    }
}

/// The current answers of a fake sentinel.
#[derive(Clone)]
struct FakeAnswers {
    port: u16,
    replicas: Vec<&'static str>,
    after: Duration,
    is_silent: bool,
}

/// A fake sentinel.
#[derive(Clone)]
struct Fake {
    server: Arc<Server>,
    says: Arc<Mutex<FakeAnswers>>,
    /// Number of questions about the primary that it has received.
    asked: Arc<AtomicUsize>,
}

fn server(at: u16, part: Part) -> Arc<Server> {
    let access = Access {
        timeout: Duration::from_secs(20),
        ..Access::default()
    };
    let place = (tcp("127.0.0.1", at), part);
    let login = (Login::default(), 0);
    Arc::new(Server::new(place, login, None, &access, ""))
}

/// Starts a server that answers each request with the result of `answer`. Returns its port.
pub fn serve(answer: impl Fn(&[String]) -> String + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                let mut parser = redis::Parser::new();
                while let Ok(request) = parser.parse_value(&client) {
                    let words: Vec<String> = redis::from_redis_value(request).unwrap();
                    let _ = client.write_all(answer(&words).as_bytes());
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

fn fake(number: usize, says: FakeAnswers) -> Fake {
    let says = Arc::new(Mutex::new(says));
    let questions = Arc::new(AtomicUsize::new(0));
    let (current, count) = (Arc::clone(&says), Arc::clone(&questions));
    let port = serve(move |words| {
        let says = lock(&current).clone();
        let port = says.port;
        if says.is_silent {
            return String::new();
        }
        match words.get(1).map(String::as_str) {
            Some("MASTER") => {
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(says.after);
                array(&format!("ip 127.0.0.1 port {port} num-other-sentinels 2"))
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
        asked: questions,
    }
}

/// Starts three sentinels that name this port.
fn three(port: u16) -> (Arc<Sentinels>, Vec<Fake>) {
    let says = FakeAnswers {
        port,
        replicas: vec!["7", "8"],
        after: Duration::ZERO,
        is_silent: false,
    };
    let fakes: Vec<Fake> = (0..3).map(|number| fake(number, says.clone())).collect();
    let nodes = fakes.iter().map(|fake| Arc::clone(&fake.server)).collect();
    (Sentinels::new(nodes, "main".into()), fakes)
}

fn tell(fakes: &[Fake], port: u16) {
    for fake in fakes {
        lock(&fake.says).port = port;
    }
}

fn slow_down(fakes: &[Fake], after: Duration) {
    for fake in fakes {
        lock(&fake.says).after = after;
    }
}

/// Returns the locks at the primary that these sentinels name, and a claim to one of them.
fn locks(fakes: &[Fake]) -> (Locks, Claim) {
    let nodes: Vec<String> = fakes.iter().map(|fake| fake.server.to_string()).collect();
    let access = Access {
        url: &format!("redis-sentinel://{}/main", nodes.join(",")),
        timeout: LONG,
        ..Access::default()
    };
    let locks = Locks::new(&access, None, 0).unwrap();
    let token = Token::read("t:h:1".into()).expect("a token");
    let claim = Claim::resume(locks.lock("a".parse().expect("a name")), token);
    (locks, claim)
}

fn asked(fakes: &[Fake]) -> usize {
    let each = fakes.iter().map(|fake| fake.asked.load(Ordering::Relaxed));
    each.sum()
}

/// Waits until all questions of a first attempt have come in, and returns their number.
fn asked_at_first(fakes: &[Fake]) -> usize {
    while asked(fakes) < fakes.len() {
        std::thread::yield_now();
    }
    asked(fakes)
}

/// Answers of scripts: released, renewed, and lock gone.
const DONE: &str = "*1\r\n:1\r\n";
const RENEWED: &str = "*6\r\n:1\r\n:900\r\n:1\r\n:1\r\n:1\r\n$-1\r\n";
const LOST: &str = "*3\r\n:0\r\n$-1\r\n$-1\r\n";

/// Returns the answer to `ROLE` of a primary with replicas at these ports, which have all of its data.
fn role(replicas: &[u16]) -> String {
    let each = replicas.iter();
    let each: String = each
        .map(|port| array(&format!("127.0.0.1 {port} 7")))
        .collect();
    format!("*3\r\n$6\r\nmaster\r\n:7\r\n*{}\r\n{each}", replicas.len())
}

/// Starts a primary with the replicas that the sentinels list, and one answer to each script. Returns its port and a counter
/// of the scripts that it has received.
fn primary_that_answers(answer: &'static str) -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let scripts = Arc::clone(&count);
    let port = serve(move |words| match words[0].as_str() {
        "ROLE" => role(&[7, 8]),
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

/// Returns a port without a listener.
fn dead() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Whether the names of the replicas matter, as under `REDLOCK_SYNC=all`.
const ALL: bool = true;
const ANY: bool = false;

const LONG: Duration = Duration::from_secs(20);

fn open(sentinels: &Arc<Sentinels>, names_each: bool) -> Result<Connection, Error> {
    open_within(LONG, sentinels, names_each)
}

fn open_within(
    within: Duration,
    sentinels: &Arc<Sentinels>,
    names_each: bool,
) -> Result<Connection, Error> {
    let mut connection = sentinels.open(&search(&server(1, Part::Primary), within, names_each))?;
    let (quorum, timeout) = (Quorum::All, within);
    let replication = Replication { quorum, timeout };
    connection.confirming.replication = names_each.then_some(replication);
    Ok(connection)
}

fn search(last: &Arc<Server>, within: Duration, needs_all: bool) -> Search {
    Search {
        last: Arc::clone(last),
        until: Instant::now() + within,
        needs_all,
    }
}

#[test]
fn a_server_that_says_that_it_is_a_replica_is_not_the_primary_whatever_sentinels_say() {
    let (sentinels, fakes) = three(serve(|_| "*3\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n".into()));
    let error = open(&sentinels, ANY).map(drop).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoPrimary);
    tell(&fakes, primary());
    assert!(open(&sentinels, ANY).is_ok());
}

#[test]
fn one_sentinel_that_still_names_the_old_primary_keeps_no_run_there() {
    let (old, new) = (primary(), primary());
    for names_each in [ANY, ALL] {
        for behind in 0..3 {
            let (sentinels, fakes) = three(new);
            tell(&fakes[behind..=behind], old);
            let mut connection = open(&sentinels, names_each).unwrap();
            assert_eq!(port_of(&connection.server().address), new);
            // A renewal keeps the run there, too, whichever sentinel answers first.
            let mut moves = || sentinels.has_moved(&mut connection, LONG);
            assert_eq!([moves(), moves(), moves()], [false; 3]);
        }
    }
}

#[test]
fn while_most_sentinels_are_down_no_run_begins_and_a_release_gets_to_the_last_primary() {
    let port = primary();
    let (sentinels, fakes) = three(port);
    for fake in &fakes[1..] {
        lock(&fake.says).is_silent = true;
    }
    let last = server(port, Part::Primary);
    let second = Duration::from_secs(1);
    for names_each in [ANY, ALL] {
        let error = sentinels.open(&search(&last, second, names_each));
        let error = error.map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoPrimary);
        let words = error.to_string();
        let start = "only 1 of 3 sentinels named the primary \"main\" in time";
        assert!(words.starts_with(start), "{words}");
    }
    // A server that this process hasn't reached may be any server.
    let open_to_release = |within| sentinels.open_to_release(&search(&last, within, ANY));
    assert!(open_to_release(second).is_err());
    last.note_answer();
    let connection = open_to_release(second).unwrap();
    assert_eq!(port_of(&connection.server().address), port);
    // A release goes to the next primary if most sentinels name it.
    let next = primary();
    for fake in &fakes {
        lock(&fake.says).is_silent = false;
    }
    tell(&fakes[..2], next);
    let connection = open_to_release(LONG).unwrap();
    assert_eq!(port_of(&connection.server().address), next);
}

#[test]
fn under_sync_all_most_sentinels_name_the_primary_and_its_replicas_for_each_round() {
    let (sentinels, fakes) = three(primary());
    let mut connection = open(&sentinels, ALL).unwrap();
    let both = ["127.0.0.1:7", "127.0.0.1:8"].map(String::from);
    assert_eq!(
        connection.confirming.listed.goal(Quorum::All),
        Goal::Each(both.into())
    );
    // A single sentinel lists a new replica.
    lock(&fakes[1].says).replicas = vec!["9"];
    assert!(!sentinels.has_moved(&mut connection, LONG));
    let Goal::Each(listed) = connection.confirming.listed.goal(Quorum::All) else {
        panic!("they are listed");
    };
    // The list comes from the first two sentinels to answer, which may include that one.
    assert!(listed.len() >= 2, "{listed:?}");
    // After two name another primary, nothing is valid here.
    tell(&fakes[1..], primary());
    assert!(sentinels.has_moved(&mut connection, LONG));
    assert!(!matches!(
        connection.confirming.listed.goal(Quorum::All),
        Goal::Each(_)
    ));
}

#[test]
fn under_sync_all_nothing_counts_while_most_sentinels_are_silent() {
    let (sentinels, fakes) = three(primary());
    let mut connection = open(&sentinels, ALL).unwrap();
    slow_down(&fakes[1..], LONG);
    let second = Duration::from_secs(1);
    assert!(!sentinels.has_moved(&mut connection, second));
    let Goal::Unreachable(why) = connection.confirming.listed.goal(Quorum::All) else {
        panic!("nothing counts");
    };
    assert!(why.contains("REDLOCK_SYNC=all needs 2"), "{why}");
    let opened = open_within(second, &sentinels, ALL);
    assert_eq!(opened.map(drop).unwrap_err().kind, ErrorKind::NoPrimary);
}

#[test]
fn a_holder_follows_most_sentinels_to_the_next_primary() {
    let (old, new) = (primary(), primary());
    for names_each in [ANY, ALL] {
        let (sentinels, fakes) = three(old);
        let mut connection = open(&sentinels, names_each).unwrap();
        let moves = |connection: &mut Connection| sentinels.has_moved(connection, LONG);
        assert!(!moves(&mut connection));
        // The sentinel that replaces the primary is the first to name the next one.
        tell(&fakes[..1], new);
        assert!(!moves(&mut connection));
        tell(&fakes[..2], new);
        assert!(moves(&mut connection));
        let mut connection = open(&sentinels, names_each).unwrap();
        assert_eq!(port_of(&connection.server().address), new);
        assert!(!moves(&mut connection));
    }
}

/// Releases a lock at a primary that is replaced just after its answer. From then on the primary names these replicas as
/// connected (`None`: it is a replica itself). Returns how often the next primary was asked for the release, and the result.
/// The next primary answers with `next`.
fn released_while_replaced(
    replicas: Option<&'static [u16]>,
    quorum: Option<Quorum>,
    next: &'static str,
) -> (usize, Result<(Released, bool), Error>) {
    let (next, repeated) = primary_that_answers(next);
    let (_, fakes) = three(0);
    let sentinels = fakes.clone();
    let is_replaced = AtomicUsize::new(0);
    let old = serve(move |words| match words[0].as_str() {
        "ROLE" if is_replaced.load(Ordering::Relaxed) == 0 => role(&[7, 8]),
        "ROLE" => replicas.map_or_else(|| array("slave 127.0.0.1 1"), role),
        // WAIT counts any connected replicas.
        "WAIT" => ":2\r\n".into(),
        _ => {
            tell(&sentinels, next);
            is_replaced.store(1, Ordering::Relaxed);
            DONE.into()
        }
    });
    tell(&fakes, old);
    let (locks, claim) = locks(&fakes);
    if let Some(quorum) = quorum {
        let timeout = LONG;
        locks
            .deployment
            .replicate(Replication { quorum, timeout })
            .unwrap();
    }
    let mut client = locks.open().unwrap();
    let mode = ReleaseMode::Finished {
        outcome: HoldOutcome::Status(0),
        keep_for: Duration::ZERO,
    };
    let released = claim.release_or_retry(&mut client, &mode, LONG, None, || {});
    (repeated.load(Ordering::Relaxed), released)
}

#[test]
fn with_sync_all_a_release_is_repeated_at_the_next_primary_unless_each_listed_replica_has_it() {
    let all = Some(Quorum::All);
    for (what, replicas, quorum, next, times) in [
        ("each has it", Some(&[7, 8][..]), all, DONE, 0),
        ("it is demoted", None, all, DONE, 1),
        // The others include, for example, a former primary that has just been demoted. Their number is right.
        ("others have it", Some(&[8, 9]), all, DONE, 1),
        ("none is connected", Some(&[]), all, DONE, 1),
        // The release was acknowledged, so it is no loss if the next primary never had the lock.
        ("no loss", Some(&[8, 9]), all, LOST, 1),
        // A single replica was enough for the lease, and the release needs none.
        ("any", Some(&[]), Some(Quorum::AtLeast(1)), DONE, 0),
        ("without sync", Some(&[]), None, DONE, 0),
    ] {
        let (repeated, released) = released_while_replaced(replicas, quorum, next);
        let is_released = matches!(released, Ok((Released::Now, true)));
        assert!(is_released, "{what}: {released:?}");
        assert_eq!(repeated, times, "{what}");
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
    locks.deployment.replicate(replication).unwrap();
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
fn a_sentinel_that_is_far_away_has_as_long_as_it_has_taken() {
    let (sentinels, fakes) = three(primary());
    slow_down(&fakes, sentinels::LEAST * 2);
    let mut connection = open(&sentinels, ALL).unwrap();
    assert!(!sentinels.has_moved(&mut connection, LONG));
    assert!(!matches!(
        connection.confirming.listed.goal(Quorum::All),
        Goal::Unreachable(_)
    ));
}

#[test]
fn while_the_primary_is_dead_each_try_asks_one_sentinel() {
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hung.local_addr().unwrap().port();
    let (sentinels, fakes) = three(port);
    let open_soon = || open_within(Duration::from_secs(1), &sentinels, ANY).map(drop);
    assert!(open_soon().is_err());
    let before = asked_at_first(&fakes);
    assert!(open_soon().is_err());
    assert_eq!(asked(&fakes) - before, 1);
    for names_each in [ANY, ALL] {
        let (sentinels, fakes) = three(dead());
        assert!(open(&sentinels, names_each).is_err());
        let before = asked_at_first(&fakes);
        for _ in 0..6 {
            let error = open(&sentinels, names_each).map(drop).unwrap_err();
            assert_eq!(error.kind, ErrorKind::NoPrimary);
        }
        assert_eq!(asked(&fakes) - before, 6);
        // After one sentinel names another primary, redlock asks all of them.
        tell(&fakes, primary());
        assert!(open(&sentinels, names_each).is_ok());
    }
}

#[test]
fn a_release_that_is_not_confirmed_in_time_fails_no_later_request() {
    // The answers about the release come with the answer to the next request.
    let role = "*3\r\n$6\r\nmaster\r\n:7\r\n*1\r\n*3\r\n$1\r\nh\r\n$1\r\n1\r\n$1\r\n3\r\n";
    let port = serve(move |words| match words[0].as_str() {
        "PING" => format!("{role}:0\r\n{role}+PONG\r\n"),
        _ => String::new(),
    });
    let (mut connection, _) = Connection::open(&server(port, Part::Only), LONG, &[]).unwrap();
    let (quorum, timeout) = (Quorum::All, LONG);
    connection.confirming.replication = Some(Replication { quorum, timeout });
    let behind = Goal::Each(vec!["h:1".into()]);
    connection.confirming.listed = ReplicaList::for_a_round(behind);
    assert!(!connection.is_followed(Duration::from_millis(50)));
    assert!(connection.query(&cmd("PING")).is_ok());
}
