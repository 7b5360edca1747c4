//! Servers, proxies and data that lie: nothing that comes in over the connection, and nothing that
//! our keys contain, makes redlock crash, hang, grow, or believe that it holds a lock that it doesn't.
//!
//! Most of it is put between redlock and a real Redis by a [`Liar`], which lets everything pass but what
//! a test wants to be otherwise.

mod replies;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::support::lua::KEYS;
use crate::support::prelude::*;
use crate::support::proxy::hashes;

/// The most that redlock may ever have in memory, in KiB; 9 MiB of it are the code of the binary that is tested, which
/// isn't optimised.
const MOST: u64 = 44 * 1024;

/// What redlock gets for an answer.
#[derive(Clone, Debug)]
enum Say {
    /// What the server says.
    Truth,
    /// The same, twice.
    Twice,
    /// The same, and then messages without an end.
    TruthAndFlood,
    /// The same, but for a change.
    Changed(fn(&str) -> String),
    /// This, whatever the server would say.
    Lie(Vec<u8>),
    /// First this, and then that over and over, up to this many bytes.
    Stream(Vec<u8>, Vec<u8>, usize),
    /// One byte of this at a time, over and over.
    Drip(Vec<u8>),
    /// Nothing.
    Silence,
    /// The connection is closed.
    Close,
}

/// How the other side has left a connection.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    InOrder,
    Reset,
}

type Hook = dyn FnMut(&str) -> Say + Send;

/// A server that lies, in front of one that doesn't.
struct Liar {
    port: u16,
    gone: Arc<AtomicBool>,
    /// How much of a stream was written.
    streamed: Arc<AtomicUsize>,
    /// The last operation of each connection that redlock has closed, and how it did so.
    left: Receiver<(String, Left)>,
}

impl Liar {
    /// The hook says what comes for an answer to each request, which it gets by its name: that of the
    /// script without its ending, or the command.
    fn new(redis: &Redis, hook: impl FnMut(&str) -> Say + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let gone = Arc::new(AtomicBool::new(false));
        let (leaving, left) = channel();
        let streamed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&streamed);
        let hook: Arc<Mutex<Box<Hook>>> = Arc::new(Mutex::new(Box::new(hook)));
        let socket = redis.socket();
        let ended = Arc::clone(&gone);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let server = UnixStream::connect(&socket).ok();
                let (hook, leaving) = (Arc::clone(&hook), leaving.clone());
                let count = Arc::clone(&count);
                std::thread::spawn(move || {
                    serve(&client, server.as_ref(), &hook, &count, &leaving);
                });
            }
        });
        Self {
            port,
            gone,
            streamed,
            left,
        }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Waits until redlock is in the middle of a stream.
    #[track_caller]
    fn await_flood(&self) {
        wait_until("much was read of a stream", || {
            self.streamed.load(Ordering::Relaxed) > 256 * 1024
        });
    }

    /// A redlock that knows this server.
    fn redlock(&self, redis: &Redis, arguments: &[&str]) -> Command {
        let mut command = redis.redlock(arguments);
        command.env("REDLOCK_URL", self.url());
        command
    }

    /// A run with these options, whose COMMAND is under way.
    #[track_caller]
    fn run(&self, redis: &Redis, options: &str, script: &str) -> Running {
        let mut command = redis.run(&format!("{options} a"), script);
        Running::ready(command.env("REDLOCK_URL", self.url()))
    }

    /// A run that waits in the queue; its COMMAND says mine.
    #[track_caller]
    fn waiter(&self, redis: &Redis) -> Running {
        let mut waiter = Running::start(&mut self.redlock(redis, words!("run a -- echo mine")));
        waiter.wait_until_queued(redis);
        waiter
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// A number of a line, after its first character. The line is kept.
fn number(client: &mut impl BufRead, all: &mut Vec<u8>) -> io::Result<usize> {
    let start = all.len();
    client.read_until(b'\n', all)?;
    let line = String::from_utf8_lossy(&all[start..]);
    let digits = line.get(1..).unwrap_or_default().trim();
    digits
        .parse()
        .map_err(|_| io::ErrorKind::InvalidData.into())
}

/// One request: its words, and all its bytes.
fn request(client: &mut impl BufRead) -> io::Result<(Vec<String>, Vec<u8>)> {
    let (mut words, mut all) = (Vec::new(), Vec::new());
    for _ in 0..number(client, &mut all)? {
        let size = number(client, &mut all)?;
        let start = all.len();
        all.resize(start + size + 2, 0);
        client.read_exact(&mut all[start..])?;
        words.push(String::from_utf8_lossy(&all[start..start + size]).into_owned());
    }
    Ok((words, all))
}

fn serve(
    client: &TcpStream,
    server: Option<&UnixStream>,
    hook: &Mutex<Box<Hook>>,
    streamed: &Arc<AtomicUsize>,
    leaving: &Sender<(String, Left)>,
) {
    let next = Arc::new(Mutex::new(None::<Say>));
    let lies = Arc::new(AtomicBool::new(false));
    if let Some(server) = server {
        let (server, client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let (next, lies) = (Arc::clone(&next), Arc::clone(&lies));
        let count = Arc::clone(streamed);
        std::thread::spawn(move || forward(server, client, &next, &lies, &count));
    }
    let mut reader = BufReader::new(client);
    let mut last = String::new();
    let ended = loop {
        let (words, bytes) = match request(&mut reader) {
            Ok(request) => request,
            Err(error) => break error.kind(),
        };
        last = match words[0].as_str() {
            "EVALSHA" => hashes()[&words[1]].to_owned(),
            "EVAL" => hashes()[redis::Script::new(&words[1]).get_hash()].to_owned(),
            other => other.to_owned(),
        };
        let say = hook.lock().unwrap()(&last);
        let tells_the_truth = matches!(
            say,
            Say::Truth | Say::Twice | Say::TruthAndFlood | Say::Changed(_)
        );
        if !tells_the_truth {
            // What the server still has to say would fall in between.
            lies.store(true, Ordering::Relaxed);
        }
        let mut to_client = client.try_clone().unwrap();
        match say {
            Say::Truth | Say::Twice | Say::TruthAndFlood | Say::Changed(_) => {
                if !matches!(say, Say::Truth) {
                    *next.lock().unwrap() = Some(say);
                }
                if server.is_none_or(|mut server| server.write_all(&bytes).is_err()) {
                    let _ = client.shutdown(Shutdown::Both);
                }
            }
            Say::Lie(answer) => {
                let _ = to_client.write_all(&answer);
                lies.store(false, Ordering::Relaxed);
            }
            Say::Stream(first, again, most) => {
                let count = Arc::clone(streamed);
                std::thread::spawn(move || stream(&mut to_client, &first, &again, most, &count));
            }
            Say::Drip(bytes) => {
                std::thread::spawn(move || {
                    #[allow(clippy::maybe_infinite_iter)] // It ends with the connection.
                    bytes.iter().cycle().all(|byte| {
                        std::thread::sleep(Duration::from_millis(20));
                        to_client.write_all(&[*byte]).is_ok()
                    })
                });
            }
            Say::Silence => {}
            Say::Close => {
                let _ = client.shutdown(Shutdown::Both);
            }
        }
    };
    if let Some(server) = server {
        let _ = server.shutdown(Shutdown::Both);
    }
    let how = match ended {
        io::ErrorKind::ConnectionReset => Left::Reset,
        _ => Left::InOrder,
    };
    let _ = leaving.send((last, how));
}

/// Passes on what the server says, in the way that is wanted next.
fn forward(
    mut server: UnixStream,
    mut client: TcpStream,
    next: &Mutex<Option<Say>>,
    lies: &AtomicBool,
    streamed: &AtomicUsize,
) {
    let mut bytes = vec![0; 65536];
    while let Ok(read @ 1..) = server.read(&mut bytes) {
        if lies.load(Ordering::Relaxed) {
            continue;
        }
        let said = &bytes[..read];
        // A script that isn't known yet is asked for again, and only then answered.
        let is_answer = !said.starts_with(b"-NOSCRIPT");
        let how = is_answer.then(|| next.lock().unwrap().take()).flatten();
        let floods = matches!(how, Some(Say::TruthAndFlood));
        let said = match how {
            Some(Say::Twice) => [said, said].concat(),
            Some(Say::Changed(change)) => change(&String::from_utf8_lossy(said)).into_bytes(),
            _ => said.to_vec(),
        };
        if client.write_all(&said).is_err() {
            break;
        }
        if floods {
            stream(&mut client, b"", MESSAGE, usize::MAX, streamed);
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Writes until the reader is gone, or it is enough.
fn stream(client: &mut TcpStream, first: &[u8], again: &[u8], most: usize, count: &AtomicUsize) {
    let many = again.repeat((64 * 1024 / again.len()).max(1));
    let mut written = 0;
    if client.write_all(first).is_err() {
        return;
    }
    while written < most && client.write_all(&many).is_ok() {
        written += many.len();
        count.store(written, Ordering::Relaxed);
    }
}

/// A RESP3 message by which a server asks whether we are alive.
const MESSAGE: &[u8] = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n";

fn flood() -> Say {
    Say::Stream(Vec::new(), MESSAGE.to_vec(), usize::MAX)
}

/// The truth, but for what is said to these operations, as in `renew|check`: for the n-th time (from 1), or always (0).
fn once(operations: &'static str, n: usize, say: Say) -> impl FnMut(&str) -> Say + Send {
    let mut count = 0;
    move |asked| {
        let is_meant = operations.split('|').any(|operation| operation == asked);
        count += usize::from(is_meant);
        if is_meant && (n == 0 || count == n) {
            say.clone()
        } else {
            Say::Truth
        }
    }
}

fn always(operation: &'static str, say: Say) -> impl FnMut(&str) -> Say + Send {
    once(operation, 0, say)
}

/// How much memory a process had at most, in KiB; 0 when it is gone.
fn peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0)
}

/// Runs a command to its end; also how much memory it had at most.
fn weighed(command: &mut Command) -> (Outcome, u64) {
    let mut run = Running::start(command);
    let mut most = 0;
    wait_until("it ends", || {
        most = most.max(peak(run.pid()));
        run.has_ended()
    });
    (run.finish(), most)
}

#[test]
fn on_a_server_without_resp3_a_run_is_renewed_and_waiters_get_their_turns() {
    let renamed = Redis::with(&["--rename-command", "HELLO", ""]);
    let forbidden = Redis::start();
    forbidden.cli(&["ACL", "SETUSER", "default", "-hello"]);
    for redis in [renamed, forbidden] {
        let holder = Gated::start(&redis, words!("--ttl 6s -k 1s a")).ready();
        redis.await_calls("pexpire", 5);
        let waiter = Gated::queued(&redis, &["a"]);
        let next = Gated::queued(&redis, &["a"]);
        let ended = holder.end();
        assert!(waiter.ready().end() > ended);
        next.ready().end();
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_waiter_gets_its_turn_behind_a_proxy_that_closes_when_it_hears_hello() {
    let redis = Redis::left_empty();
    let hellos = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&hellos);
    let liar = Liar::new(&redis, move |asked| match asked {
        "HELLO" => {
            heard.fetch_add(1, Ordering::Relaxed);
            Say::Close
        }
        _ => Say::Truth,
    });
    let holder = Gated::start(&redis, &["a"]).ready();
    let mut waiter = liar.waiter(&redis);
    holder.end();
    waiter.expect_line("mine");
    waiter.finish().assert_code(0);
    assert_eq!(hellos.load(Ordering::Relaxed), 1);
}

#[test]
fn a_proxy_that_can_not_reach_its_redis_is_69() {
    let redis = Redis::start();
    for (answer, says) in [
        ("-upstream failure\r\n", ": upstream failure"),
        ("-no upstream host\r\n", ": no upstream host"),
        ("-ERR Connection refused\r\n", ": connection refused"),
        ("-ERR Connection timed out\r\n", ": connection timed out"),
    ] {
        let liar = Liar::new(&redis, always("acquire", Say::Lie(answer.into())));
        let end = outcome(&mut liar.redlock(&redis, words!("run -n a -- echo started")));
        end.assert_said(69, "the proxy at ");
        end.assert_says(says);
        assert_eq!(end.stdout, "");
    }
}

#[test]
fn a_waiter_behind_a_proxy_that_can_not_reach_its_redis_tries_on() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    // The first one takes the place in the queue.
    let liar = Liar::new(&redis, move |asked| match asked {
        "acquire" if (1..3).contains(&count.fetch_add(1, Ordering::Relaxed)) => {
            Say::Lie(b"-upstream failure\r\n".into())
        }
        _ => Say::Truth,
    });
    let mut waiter = liar.waiter(&redis);
    wait_until("it was answered so twice, and has asked again", || {
        requests.load(Ordering::Relaxed) > 3
    });
    holder.end();
    waiter.expect_line("mine");
    waiter.finish().assert_code(0);
}

/// What is asked, and by which commands.
static QUESTIONS: [(&str, &str); 6] = [
    ("release", "release a"),
    ("take", "run a -- echo started"),
    ("acquire", "run --shared a -- echo started"),
    ("inspect", "status a"),
    ("history", "history a"),
    ("ZRANGEBYSCORE", "status"),
];

#[test]
fn a_reply_without_an_end_takes_no_memory() {
    let redis = Redis::left_empty();
    let (deep, large) = (&QUESTIONS[..5], &QUESTIONS[1..]);
    for (what, questions, first, again, says) in [
        ("a deep list", deep, "*1\r\n", "*1\r\n", "too deep"),
        ("a text", large, "$300000000\r\n", "x", ""),
        ("a list of numbers", large, "*100000000\r\n", ":1\r\n", ""),
        ("lists", large, "*6\r\n*80000\r\n", "*1\r\n_\r\n", ""),
        ("a line", large, "+", "x", ""),
    ] {
        for &(operation, line) in questions {
            let endless = Say::Stream(first.into(), again.into(), 300_000_000);
            let liar = Liar::new(&redis, always(operation, endless));
            let mut command = liar.redlock(&redis, &words(line, &[]));
            let (end, peak) = weighed(command.env("REDLOCK_TOKEN", "x"));
            assert_eq!(end.code(), Some(69), "{what} for {operation}: {end:?}");
            end.assert_says(says);
            assert!(end.stderr.len() < 1000, "{end:?}");
            assert!(end.stdout.is_empty(), "{end:?}");
            assert!(peak < MOST, "{what} for {operation}: {peak} KiB");
        }
    }
}

#[test]
fn a_renewal_whose_answer_has_no_end_takes_no_memory_and_is_made_again() {
    let redis = Redis::left_empty();
    let text = Say::Stream(b"$300000000\r\n".to_vec(), b"x".to_vec(), 300_000_000);
    let liar = Liar::new(&redis, once("renew", 2, text));
    let run = liar.run(&redis, "--ttl 9s -k 1s", IDLE);
    redis.await_calls("pexpire", 8);
    let peak = peak(run.pid());
    assert!(peak < MOST, "{peak} KiB");
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(143);
}

/// A run behind a liar has a lease of six seconds. In the middle of a flood, or after some renewals, Redis is gone.
/// COMMAND has to be stopped, and redlock must not believe in a longer lease.
fn believes_in_six_seconds(operations: &'static str, n: usize, say: &Say) {
    let mut redis = Redis::start();
    let liar = Liar::new(&redis, once(operations, n, say.clone()));
    let run = liar.run(&redis, "--ttl 6s -k 100ms", IDLE);
    let renewals = redis.calls("pexpire");
    if matches!(say, Say::Stream(..) | Say::TruthAndFlood) {
        liar.await_flood();
    } else {
        wait_until("it is renewed", || redis.calls("pexpire") > renewals + 3);
    }
    redis.kill();
    let end = run.finish();
    assert_eq!(end.code(), Some(79), "{operations} {n} {say:?}: {end:?}");
    end.assert_says("was not renewed in time");
}

#[test]
fn whatever_a_server_answers_to_renewals_command_does_not_outlive_its_lease() {
    // What is left of a lease of six seconds, in milliseconds.
    fn a_day(answer: &str) -> String {
        answer.replace(":6000\r\n", ":86400000\r\n")
    }
    fn for_ever(answer: &str) -> String {
        let parts = answer
            .split("\r\n")
            .map(|part| match part.strip_prefix(':') {
                Some(number) if number.len() >= 3 => ":1800000000000000",
                _ => part,
            });
        parts.collect::<Vec<_>>().join("\r\n")
    }
    // What an acquire is answered.
    let held = Say::Lie(b"*4\r\n:1\r\n$16\r\n1700000000000000\r\n:1\r\n:-1\r\n".into());
    // Side by side, as each waits most of the time.
    side_by_side(
        [
            ("acquire", 1, Say::Twice),
            ("renew", 2, Say::Twice),
            ("renew", 1, held),
            ("renew", 0, Say::Changed(a_day)),
            ("renew|check", 0, Say::Changed(for_ever)),
            ("renew", 1, flood()),
            ("check", 1, Say::TruthAndFlood),
        ],
        |(operations, n, say)| believes_in_six_seconds(operations, n, &say),
    );
}

#[test]
fn a_waiter_whose_answer_comes_twice_keeps_its_place_and_gets_its_turn() {
    for n in [1, 2, 3] {
        let redis = Redis::left_empty();
        let liar = Liar::new(&redis, once("acquire", n, Say::Twice));
        let holder = Gated::start(&redis, &["a"]).ready();
        let mut waiter = liar.waiter(&redis);
        let second = queued(&redis, &["run", "a", "--", "true"]);
        if n == 3 {
            redis.await_calls("evalsha", 3);
        }
        holder.end();
        waiter.expect_line("mine");
        waiter.finish().assert_code(0);
        second.finish().assert_code(0);
    }
}

#[test]
fn a_flood_holds_up_neither_a_signal_nor_the_end_of_command() {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    for (operation, say) in [
        ("renew", flood()),
        ("check", flood()),
        // All that was asked is answered.
        ("check", Say::TruthAndFlood),
    ] {
        for code in [143, 0] {
            let liar = Liar::new(&redis, once(operation, 1, say.clone()));
            let run = liar.run(&redis, "--ttl 30s", UNTIL_GATE);
            liar.await_flood();
            if code == 143 {
                run.signal(Signal::SIGTERM);
            } else {
                gate.open();
            }
            run.finish().assert_code(code);
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_flood_does_not_keep_a_waiter_from_ending() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    for (operation, n) in [("SUBSCRIBE", 1), ("acquire", 3)] {
        let liar = Liar::new(&redis, once(operation, n, flood()));
        let mut waiter = Running::start(&mut liar.redlock(&redis, words!("run a -- echo started")));
        if n == 3 {
            waiter.wait_until_queued(&redis);
        }
        liar.await_flood();
        assert!(!waiter.has_ended());
        waiter.signal(Signal::SIGTERM);
        waiter.finish().assert_printed(143, "");
        let liar = Liar::new(&redis, once(operation, n, flood()));
        let end = outcome(&mut liar.redlock(&redis, words!("run -w 1s a -- echo started")));
        assert!(matches!(end.code(), Some(69 | 75)), "{operation}: {end:?}");
        assert_eq!(end.stdout, "");
    }
    holder.end();
}

#[test]
fn the_connect_timeout_holds_while_bytes_keep_coming() {
    let redis = Redis::start();
    for say in [Say::Drip(MESSAGE.to_vec()), flood()] {
        for &(operation, line) in &QUESTIONS[..3] {
            let liar = Liar::new(&redis, always(operation, say.clone()));
            let mut command = liar.redlock(&redis, &words(line, &[]));
            command.env("REDLOCK_REDIS_TIMEOUT", "500ms");
            let end = outcome(command.env("REDLOCK_TOKEN", "x"));
            assert_eq!(end.code(), Some(69), "{operation}: {end:?}");
            end.assert_says("no answer in time");
            assert_eq!(end.stdout, "");
        }
    }
}

#[test]
fn no_server_can_keep_an_answer_in_parts_from_ending() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let parts = [
        "*2\r\n:4\r\n$1\r\n1\r\n",
        "*3\r\n:4\r\n$1\r\n1\r\n$1\r\n1\r\n",
    ];
    let lines = [("stop", "stop a"), ("force", "release --force a")];
    for ((operation, line), part) in lines.into_iter().zip(parts) {
        let liar = Liar::new(&redis, always(operation, Say::Lie(part.into())));
        let mut run = Running::start(&mut liar.redlock(&redis, &words(line, &[])));
        // Asking for ten thousand parts takes its time where the machine is busy.
        let began = Instant::now();
        while !run.has_ended() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        run.finish_saying(69, "had not ended after 10000 parts");
    }
    holder.end();
}

#[test]
fn forcing_a_large_group_free_counts_members_that_ended_meanwhile() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let mut parts = ["*4\r\n:1\r\n$-1\r\n:250\r\n:3\r\n", "*1\r\n:0\r\n"].into_iter();
    let liar = Liar::new(&redis, move |asked| match asked {
        "force" => Say::Lie(parts.next().unwrap().into()),
        _ => Say::Truth,
    });
    let end = outcome(&mut liar.redlock(&redis, words!("release --force a")));
    end.assert_said(0, "forced free");
    end.assert_says("and 249 more");
    holder.end();
}

#[test]
fn a_request_that_is_given_up_is_reset_and_a_release_is_not() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    let arguments = words!("REDLOCK_REDIS_TIMEOUT=2s run a -- true");
    // The third question is a heartbeat. It is asked, and no answer arrives.
    let liar = Liar::new(&redis, once("acquire", 3, Say::Silence));
    let mut waiter = Running::start(&mut liar.redlock(&redis, arguments));
    waiter.wait_until_queued(&redis);
    let (last, left) = liar.left.recv_timeout(TIMEOUT).expect("it goes away");
    assert_eq!((last.as_str(), left), ("acquire", Left::Reset));
    holder.end();
    waiter.finish().assert_code(0);

    let liar = Liar::new(&redis, once("free", 1, Say::Silence));
    outcome(&mut liar.redlock(&redis, arguments)).assert_code(0);
    let (last, left) = liar.left.recv_timeout(TIMEOUT).expect("it goes away");
    assert_eq!((last.as_str(), left), ("release", Left::InOrder));
}

/// What drives a terminal, or turns the direction of a text.
fn drives(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whatever was found, it was said in a way that a user can do something about, and COMMAND ran only
/// if that was all.
#[track_caller]
fn assert_sane(end: &Outcome, what: &str) {
    let code = end.code().unwrap_or(-1);
    let nothing_to_draw = code == 64 && end.stderr.starts_with("redlock: nothing to draw: ");
    let is_known = nothing_to_draw || [0, 69, 75, 78, 79].contains(&code);
    assert!(is_known && end.stderr.len() < 4000, "{what}: {end:?}");
    let started = end.stdout.contains("started");
    assert!(code == 0 || !started, "{what}: {end:?}");
    let seen = end.stdout.clone() + &end.stderr;
    assert!(!seen.contains(drives), "{what}: {end:?}");
}

/// Commands that read what stands in the keys of the lock "a"; a COMMAND that runs says "started".
const READERS: &str = "status a;status;status --json a;history a;history;history --json a;history --svg - a;extend a;\
    run -n a -- echo started;run -w 50ms --slots 2 a -- echo started;release a;history --skipped a";

/// Has one of these commands read what `what` describes, which takes little memory.
#[track_caller]
fn read(redis: &Redis, reader: &str, what: &str) -> Outcome {
    let mut command = redis.redlock(&words(reader, &[]));
    command.env("REDLOCK_REDIS_TIMEOUT", "10s");
    let (end, peak) = weighed(command.env("REDLOCK_TOKEN", "x"));
    assert_sane(&end, &format!("{what}, {reader}"));
    assert!(peak < MOST, "{what}, {reader}: {peak} KiB");
    end
}

#[test]
fn keys_of_another_type_are_left_alone_and_named() {
    let redis = Redis::start();
    // All but the lock's own.
    for key in KEYS[1..].iter().chain(&["{redlock:a}:skips"]) {
        for line in [
            "SET {} x",
            "RPUSH {} x",
            "SADD {} x",
            "ZADD {} 1 x",
            "HSET {} x y",
        ] {
            for reader in READERS.split(';') {
                redis.cli(&["FLUSHALL"]);
                redis.cli(&words(line, &[key]));
                read(&redis, reader, &format!("{line} of {key}"));
            }
        }
    }
}

/// A client, as an entry may describe it.
fn people(nasty: &str) -> Vec<Vec<u8>> {
    let json = nasty
        .replace('\u{1b}', "\\u001b")
        .replace('\u{7}', "\\u0007");
    let who = format!(
        r#"{{"host":"{json}","user":"{json}","pid":7,"command":["{json}","\n"],"reason":"{json}","url":"https://{json}"}}"#
    );
    vec![
        who.clone().into(),
        b"{}".into(),
        b"\xff\xfe\0".into(),
        nasty.into(),
        br#"{"host":7}"#.into(),
        br#"{"pid":-1}"#.into(),
        b"[".repeat(100_000),
        format!(r#"{{"command":[{}""]}}"#, r#""","#.repeat(40_000)).into(),
        format!(r#"{{"later":{who},"host":"h"}}"#).into(),
    ]
}

/// Sends a command: the words of a line, and then these.
fn store(client: &mut UnixStream, line: &str, more: &[&[u8]]) {
    let mut command = redis::Cmd::new();
    command.arg(line.split(' ').collect::<Vec<_>>()).arg(more);
    client.write_all(&command.get_packed_command()).unwrap();
    let answer = redis::Parser::new().parse_value(client).unwrap();
    let is_error = matches!(answer, redis::Value::ServerError(_));
    assert!(!is_error, "{line}: {answer:?}");
}

#[test]
fn whatever_our_keys_contain_is_shown_escaped_or_not_at_all() {
    let redis = Redis::start();
    let nasty = "\u{1b}]0;x\u{7}\u{1b}[2J\u{202e}\u{2066}\u{61c}\u{9b}31m\u{2028}";
    let mut client = UnixStream::connect(redis.socket()).unwrap();
    let mut store = |line: &str, more: &[&[u8]]| store(&mut client, line, more);
    for who in &people(nasty) {
        for number in [
            "7 8000 1 1 250 held",
            "9007199254740993 8000 1 1 250 held",
            "7 99999999999999999999 1 1 250 held",
            "7 18446744073709551615 1 1 18446744073709551615 held",
            "7 0 4294967295 4294967295 0 kept",
            "-1 -1 -1 -1 -1 granted",
            "",
        ] {
            redis.cli(&["FLUSHALL"]);
            let after = |text: &str| [text.as_bytes(), who.as_slice()].concat();
            let entry = after(&format!("{number} "));
            let length = who.len();
            let forced = after(&format!("{nasty} 9000 forced {length} "));
            let skipped = after(&format!("9000 busy 7 {length} "));
            store("SET redlock:a t PX 60000", &[]);
            let meta: [&[u8]; 3] = [&entry, nasty.as_bytes(), &entry];
            store("HSET {redlock:a}:meta t", &meta);
            store("ZADD {redlock:a}:queue 1 w", &[]);
            let waiter = after("99999999999999 1 8000 1 ");
            store("HSET {redlock:a}:waiters w", &[&waiter]);
            let frozen = after("99999999999999 8000 ");
            store("HSET {redlock:a}:state frozen", &[&frozen]);
            let over = [b"c0ffee 9000 lost 0 ", entry.as_slice()].concat();
            let forced = [forced, entry.clone()].concat();
            let history: [&[u8]; 5] = [&over, &forced, who, b"", &entry];
            store("RPUSH {redlock:a}:history", &history);
            let skipped = [skipped.as_slice(), who.as_slice()].concat();
            store("RPUSH {redlock:a}:skips", &[&skipped, who, b""]);
            for name in [
                b"a".as_slice(),
                "a\u{202e}b".as_bytes(),
                b"\xff",
                entry.as_slice(),
            ] {
                store("ZADD {redlock:}:index 99999999999999", &[name]);
            }
            let start = String::from_utf8_lossy(&who[..length.min(300)]);
            let what = format!("{number:?}, {start:?}");
            for reader in READERS.split(';') {
                let end = read(&redis, reader, &what);
                let started = reader.starts_with("run") && end.stdout.contains("started");
                assert!(!started, "{what}: it isn't free");
            }
        }
    }
}

/// Commands to CI agents, each of which may be the name of a lock, and what
/// people see of them.
const COMMANDS: [(&str, &str); 5] = [
    ("##vso[task.prependpath]/x", r"#\#vso[task.prependpath]/x"),
    ("##[add-path]/x", r"#\#[add-path]/x"),
    ("###[add-path]/x", r"##\#[add-path]/x"),
    ("##teamcity[x]", r"#\#teamcity[x]"),
    ("::stop-commands::x", r":\:stop-commands::x"),
];

/// An agent obeys no line of it: `##vso[` and its kind count anywhere, `::` at the start.
#[track_caller]
fn assert_obeyed_by_no_agent(end: &Outcome) {
    let is_command = |line: &str| {
        let mut anywhere = ["##vso[", "##[", "##teamcity["].iter();
        anywhere.any(|start| line.contains(start)) || line.trim_start().starts_with("::")
    };
    let mut lines = end.stdout.lines().chain(end.stderr.lines());
    assert!(!lines.any(is_command), "{end:?}");
}

/// Lines that show a lock, or a message about it, with its name in the place of NAME.
const SHOWS_A_NAME: &str = "status NAME;status;status --json;status --json NAME;history --json;\
    history --json NAME;history --json --skipped NAME;doctor --json NAME;status --names-only;history NAME;\
    history;history --names-only;history --skipped NAME;history --svg - NAME;doctor NAME;\
    -v run -n NAME -- true;-v run -w 50ms NAME -- true;stop NAME;release --force --reason NAME NAME;\
    freeze --reason NAME NAME;thaw NAME";

#[test]
fn text_of_other_clients_is_no_command_to_a_ci_agent() {
    let redis = Redis::start();
    for (command, shown) in COMMANDS {
        redis.cli(&["FLUSHALL"]);
        let who = format!(
            r#"{{"host":"{command}","user":"{command}","pid":7,"command":["{command}"],"reason":"{command}","url":"{command}"}}"#
        );
        let (name, key) = (command, format!("{{redlock:{command}}}"));
        let hold = format!("7 8000 1 1 250 held {who}");
        plant(&redis, name);
        redis.cli(&["HSET", &format!("{key}:meta"), "token", &hold]);
        redis.cli(&["ZADD", &format!("{key}:queue"), "1", "w"]);
        let waiter = format!("99999999999999 1 8000 1 {who}");
        redis.cli(&["HSET", &format!("{key}:waiters"), "w", &waiter]);
        let frozen = format!("99999999999999 8000 {who}");
        redis.cli(&["HSET", &format!("{key}:state"), "frozen", &frozen]);
        let forced = format!("c0ffee 9000 forced {} {who}{hold}", who.len());
        redis.cli(&["RPUSH", &format!("{key}:history"), &forced]);
        let skipped = format!("9000 busy 7 {} {who}{who}", who.len());
        redis.cli(&["RPUSH", &format!("{key}:skips"), &skipped]);
        for line in SHOWS_A_NAME.split(';') {
            let end = outcome(&mut redis.redlock(&words(&line.replace("NAME", name), &[])));
            assert_obeyed_by_no_agent(&end);
            if line.contains("--json") {
                let values = serde_json::Deserializer::from_str(&end.stdout).into_iter();
                let values: Vec<serde_json::Value> = values.map(Result::unwrap).collect();
                let all = serde_json::json!(values).to_string();
                assert!(all.contains(command), "{line}: {end:?}");
            } else if line.contains("--names-only") {
                // What follows types such a name, so that it can't be changed.
                assert_eq!(end.stdout, "", "{end:?}");
                end.assert_says(" is not listed, because it isn't safe in a script");
            } else {
                let all = end.stdout.clone() + &end.stderr;
                assert!(all.contains(shown), "{line}: {end:?}");
            }
        }
    }
}

#[test]
fn the_error_of_a_server_is_no_command_to_a_ci_agent() {
    let redis = Redis::start();
    for (command, shown) in COMMANDS {
        let error = Say::Lie(format!("-{command}\r\n").into());
        let liar = Liar::new(&redis, always("acquire", error));
        let end = outcome(&mut liar.redlock(&redis, words!("run -n a -- true")));
        assert_obeyed_by_no_agent(&end);
        end.assert_said(125, shown);
    }
}

#[test]
fn names_that_a_shell_or_xargs_would_change_are_left_out_of_the_names() {
    let redis = Redis::start();
    let changed = ["\"prod\"", "'", r"a\b", "a*", "a?", "[a]"];
    for name in changed.iter().chain(&["prod", "$(id)"]) {
        plant(&redis, name);
    }
    for listing in ["status", "history"] {
        let end = outcome(&mut redis.redlock(&[listing, "--names-only"]));
        end.assert_printed(0, "$(id)\nprod\n");
        // What looks like a pattern is no name of a lock at all.
        for name in ["\"prod\"", "'", r"a\b", "[a]"] {
            end.assert_says(&format!("name \"{name}\" is not listed"));
        }
        outcome(&mut redis.redlock(&[listing, "--names-only", "-q"]))
            .assert_code(0)
            .assert_silent();
    }
    let script =
        "redlock status --names-only -q | grep -vx prod | xargs -n1 redlock release --force";
    outcome(&mut redis.run("other", script));
    assert!(redis.is_held("prod"));
}

#[test]
fn a_command_in_a_message_is_safe_to_paste_whatever_the_name_of_the_lock() {
    let redis = Redis::start();
    let (name, word) = ("$(id>PW)", "'$(id>PW)'");
    let says = |line: &str, command: &str| {
        let end = outcome(&mut redis.redlock(&words(line, &[name])));
        let all = end.stdout.clone() + &end.stderr;
        assert!(all.contains(command) && all.contains(word), "{end:?}");
        // All else that has the name names the lock.
        let rest = all.replace(word, "").replace(&format!("\"{name}\""), "");
        assert!(!rest.contains(&format!(" {name}")), "{end:?}");
    };
    let holder = Running::ready(&mut redis.run(&format!("{name} --shared"), IDLE));
    says("release {}", "redlock stop");
    says("release {}", "redlock release --force --id");
    let waiter = Running::start(&mut redis.redlock(words!("run {} -- true", name)));
    wait_until("it stands in the queue", || {
        redis.queue(name).contains(&waiter.pid())
    });
    let json = outcome(&mut redis.redlock(words!("status --json {}", name))).stdout;
    let status: Value = serde_json::from_str(&json).unwrap();
    let id = status[0]["waiters"][0]["id"].as_str().unwrap();
    says(
        &format!("stop --id {id} {{}}"),
        "redlock release --force --id",
    );
    says("freeze --reason x {}", "redlock thaw");
    says("run -n {} -- true", "redlock thaw");
    outcome(&mut redis.redlock(words!("thaw {}", name))).assert_code(0);
    for run in [waiter, holder] {
        run.signal(Signal::SIGTERM);
        run.finish();
    }

    redis.cli(&["FLUSHALL"]);
    plant(&redis, name);
    says("stop {}", "redlock release --force --id");
    redis.cli(&["PERSIST", &format!("redlock:{name}")]);
    says("doctor {}", "redlock release --force");
    redis.cli(&["FLUSHALL"]);
    outcome(&mut redis.redlock(words!("freeze --reason x {}", name))).assert_code(0);
    says("doctor {}", "redlock thaw");
}

/// A held lock, as another program could write it.
pub fn plant(redis: &Redis, name: &str) {
    let index = ["ZADD", "{redlock:}:index", "99999999999999", name];
    assert_eq!(redis.cli(&index), "1");
    let key = format!("redlock:{name}");
    assert_eq!(redis.cli(&["SET", &key, "token", "PX", "600000"]), "OK");
}

/// Lines that name a lock which might be an option.
const NAMES_A_LOCK: &str = "run -- {} true;acquire -- {};extend -- {};release --force -- {};stop -- {};\
    status -- {};history -- {};freeze --reason x -- {};thaw -- {};doctor -- {}";

#[test]
fn a_lock_that_others_name_like_an_option_is_neither_listed_nor_used() {
    let redis = Redis::start();
    let mark = redis.dir.path().join("ran");
    let evil = format!("--shell=touch${{IFS}}{}", mark.display());
    // xargs takes quotes and backslashes away.
    let quoted = [("\"", "\""), ("\\", ""), ("''", "")];
    let [double, escaped, single] = quoted.map(|(start, end)| format!("{start}{evil}{end}"));
    let names = [evil.as_str(), "-q", "-", &double, &escaped, &single];
    for name in names.iter().chain(&["deploy"]) {
        plant(&redis, name);
    }
    for line in [
        "status --names-only",
        "status --names-only *",
        "history --names-only",
        "history --names-only *",
    ] {
        let end = ends(&redis, line);
        assert_eq!(end.assert_code(0).stdout, "deploy\n", "{line}");
    }
    let table = ends(&redis, "status").stdout;
    assert_eq!(table.lines().count(), 2, "{table}");
    let script = "redlock status --names-only | xargs redlock history";
    outcome(&mut redis.run("other", script)).assert_code(0);
    assert!(!mark.exists());

    let keys = || redis.cli(&["KEYS", "*"]).lines().count();
    let before = keys();
    for name in names {
        for line in NAMES_A_LOCK.split(';') {
            let end = outcome(&mut redis.redlock(&words(line, &[name])));
            assert_eq!(end.code(), Some(64), "{line} {end:?}");
            assert_eq!(end.stderr.lines().count(), 1, "{line} {end:?}");
            if line.starts_with("status") {
                end.assert_says("a lock's name can't begin with -");
                end.assert_says("put another character first");
            }
        }
    }
    // Nor does a variable of a job name one.
    ends(&redis, "REDLOCK_NAME=-q extend").assert_code(64);
    assert_eq!(keys(), before);
    assert!(!mark.exists());
}

#[test]
fn large_values_in_our_keys_take_no_memory() {
    let redis = Redis::start();
    for command in [
        "redis.call('SET', 'redlock:a', x)",
        "redis.call('HSET', '{redlock:a}:meta', 't', x)",
        "redis.call('HSET', '{redlock:a}:state', 'frozen', '99999999999999 1 ' .. x)",
        "redis.call('RPUSH', '{redlock:a}:history', x)",
        "redis.call('RPUSH', '{redlock:a}:skips', x)",
        "redis.call('ZADD', '{redlock:}:index', 99999999999999, x)",
    ] {
        redis.cli(&["FLUSHALL"]);
        redis.cli(&["SET", "redlock:a", "t", "PX", "600000"]);
        redis.cli(&["ZADD", "{redlock:a}:queue", "1", "w"]);
        let script = format!("local x = string.rep('x', 45000000) return #tostring({command})");
        let length = redis.cli(&["EVAL", &script, "0"]);
        assert!(length.parse::<u64>().is_ok(), "{length}");
        for reader in "status a;history;run -n a -- echo started;history --skipped a".split(';') {
            let end = read(&redis, reader, command);
            let started = reader.starts_with("run") && end.stdout.contains("started");
            assert!(!started, "{command}: it isn't free");
        }
    }
}

#[test]
fn a_long_listing_takes_little_memory() {
    let redis = Redis::start();
    // Texts and lists that are small by themselves, and large when they are read or shown.
    let script = r#"
        local words = {}
        for n = 1, 40000 do words[n] = '""' end
        local who = '{"command":[' .. table.concat(words, ',') .. ']}'
        for n = 1, 120 do
            redis.call('RPUSH', KEYS[1], 'c0ffee 9000 lost 0 ' .. n .. ' 8000 1 1 250 held ' .. who)
        end
        who = '{"reason":"' .. string.rep('\226\128\174', 660) .. '"}'
        for n = 1, 3000 do
            redis.call('ZADD', KEYS[2], n, 'w' .. n)
            redis.call('HSET', KEYS[3], 'w' .. n, '99999999999999 1 8000 1 ' .. who)
        end
        redis.call('SET', KEYS[4], 'x')
    "#;
    let keys = "{redlock:a}:history {redlock:a}:queue {redlock:a}:waiters redlock:a";
    let line = format!("EVAL {{}} 4 {keys}");
    assert_eq!(redis.cli(&words(&line, &[script])), "");
    for reader in READERS.split(';') {
        read(&redis, reader, "a long listing");
    }
}

#[test]
fn a_token_that_is_longer_than_any_of_ours_names_no_process() {
    let redis = Redis::start();
    let token = "x".repeat(100_000);
    redis.cli(&["SET", "redlock:a", "t", "PX", "60000"]);
    for line in ["release a", "extend a", "extend a --for 1m"] {
        let mut command = redis.redlock(&words(line, &[]));
        let end = outcome(command.env("REDLOCK_TOKEN", &token));
        assert_eq!(end.code(), Some(79), "{line}: {end:?}");
    }
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "t");
    let mut command = redis.redlock(words!("run -n a -- echo started"));
    outcome(command.env("REDLOCK_HELD", format!("a={token}"))).assert_code(75);
}
