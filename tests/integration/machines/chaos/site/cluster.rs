//! Three primaries with a replica each, and a line in front of each node, by which clients and replicas come.
//! The locks are all in one slot.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::Value;

use super::line::Line;
use super::server::{answers, disturb, tell, text};
use super::{AGAIN, APART, Injected, Later, Loss, State, Then, Topology, clocks, ms};
use crate::support::{Cluster, Dice, Redis, WallClock, ask_within, free_port};

const NODES: usize = 6;

/// The slot of all locks is that of this key.
const KEY: &str = "{redlock}:a";

/// How long a node is missing before the others take it for failed, or less.
const NOTICED: Duration = Duration::from_millis(800);

/// Longer than a node has to be silent, and its replica takes to be elected.
const SETTLED: Duration = Duration::from_millis(1500);

/// How often it is seen whether the replicas have it all.
const LOOKING: Duration = Duration::from_millis(200);

/// How long a part of a move may take.
const PATIENCE: Duration = Duration::from_millis(200);

pub struct Sharded {
    all: Cluster,
    lines: Vec<Line>,
    _clocks: Vec<WallClock>,
    ids: Vec<String>,
    slot: String,
    keeps_data: bool,
    nodes: [State; NODES],
    /// The lines on which something goes wrong.
    disturbed: [bool; NODES],
    /// Since when a node has missed what the others have.
    missing: [Option<Instant>; NODES],
    looked: Instant,
    /// From which node the slot is being moved, and to which.
    moving: Option<(usize, usize)>,
    /// Since when no node has the slot.
    unowned: Option<Instant>,
    /// The one that was the owner when that was last seen.
    last: Option<usize>,
    noticed: Vec<Injected>,
    later: Later,
}

impl Sharded {
    pub fn start(dice: &mut Dice) -> Self {
        let keeps_data = dice.chance(50);
        let mut lines = Vec::new();
        let clocks = clocks(NODES, dice);
        let all = Cluster::of(&[0, 1, 2], |common| {
            let line = Line::new();
            let port = line.port.to_string();
            let mut options = common.to_vec();
            // Clients, replicas and other nodes are told of the line.
            options.extend(["--cluster-announce-port", &port]);
            options.extend(["--replica-announce-port", &port]);
            options.extend(["--enable-debug-command", "local"]);
            if keeps_data {
                options.extend(["--appendonly", "yes", "--appendfsync", "always"]);
            }
            let before = clocks[lines.len()].before();
            let before: Vec<&str> = before.iter().map(String::as_str).collect();
            let node = Redis::at(free_port, &before, &options);
            line.lead_to(node.port);
            lines.push(line);
            node
        });
        let ids = (0..NODES).map(|number| all.id(number)).collect();
        let slot = all.slot(KEY);
        let last = Some(all.owner(&slot));
        Self {
            all,
            lines,
            _clocks: clocks,
            ids,
            slot,
            keeps_data,
            nodes: [State::Running; NODES],
            disturbed: [false; NODES],
            missing: [None; NODES],
            looked: Instant::now(),
            moving: None,
            unowned: None,
            last,
            noticed: Vec::new(),
            later: Later::default(),
        }
    }

    /// What a node says of all.
    fn view(&self, number: usize) -> Option<View> {
        if self.nodes[number] != State::Running {
            return None;
        }
        let nodes = text(tell(&self.all.nodes[number], &["CLUSTER", "NODES"]));
        (!nodes.is_empty()).then(|| View::of(&nodes))
    }

    /// The number of the node that has the slot, as most say.
    fn owner(&self) -> Option<usize> {
        let slot = self.slot.parse().unwrap();
        let mut votes: HashMap<String, usize> = HashMap::new();
        for view in (0..NODES).filter_map(|number| self.view(number)) {
            if let Some(id) = view.owner(slot) {
                *votes.entry(id).or_default() += 1;
            }
        }
        let (id, _) = votes.into_iter().max_by_key(|(_, votes)| *votes)?;
        self.ids.iter().position(|one| *one == id)
    }

    /// A running replica of this node.
    fn replica(&self, of: usize) -> Option<usize> {
        (0..NODES).find(|&number| {
            let view = self.view(number);
            view.is_some_and(|view| view.primary_of_own() == Some(&self.ids[of]))
        })
    }

    /// Sees whether another one has become the owner.
    fn notice(&mut self) {
        let now = self.owner();
        if now.is_some() && now != self.last {
            let what = format!("the slot is now that of {}", now.unwrap_or_default());
            self.noticed.push(self.promoting(what, Duration::ZERO));
            self.last = now;
        }
    }

    /// From now on a node may miss what the others get.
    fn misses(&mut self, number: usize) {
        self.missing[number].get_or_insert_with(Instant::now);
    }

    /// For certain.
    fn is_behind(&mut self, number: usize) {
        self.missing[number] = Instant::now().checked_sub(NOTICED * 2);
    }

    /// What a change of the primary loses now: a replica that was taken for failed has confirmed nothing.
    fn at_risk(&self) -> Loss {
        let is_long =
            |since: &Option<Instant>| since.is_some_and(|since| since.elapsed() > NOTICED);
        if self.missing.iter().any(is_long) {
            Loss::Latest
        } else {
            Loss::Nothing
        }
    }

    /// A fault that may change the primary.
    fn promoting(&self, what: String, lasts: Duration) -> Injected {
        let injected = Injected::new(what, lasts).losing(self.at_risk());
        Injected {
            promotes: true,
            ..injected
        }
    }

    fn kill(&mut self, number: usize, role: &str, dice: &mut Dice) -> Injected {
        // Nobody would take the place of a primary without data whose replica has none, either.
        if !self.keeps_data && self.missing != [None; NODES] {
            return Injected::nothing("a node is missing already");
        }
        let what = format!("the {role} {number} is killed");
        let injected = self.promoting(what, ms(dice, 200, 5000));
        self.die(number);
        self.later.after(injected.lasts, Then::Launch(number));
        injected
    }

    /// A primary that comes back before anybody has missed it.
    fn restart(&mut self, number: usize, dice: &mut Dice) -> Injected {
        let what = format!("the owner {number} restarts");
        let injected = self.promoting(what, ms(dice, 20, 300));
        self.die(number);
        self.later.after(injected.lasts, Then::Restart(number));
        if self.keeps_data {
            injected
        } else {
            injected.losing(Loss::Everything)
        }
    }

    fn die(&mut self, number: usize) {
        self.all.nodes[number].kill();
        self.nodes[number] = State::Dead;
        self.misses(number);
        if !self.keeps_data {
            self.is_behind(number);
        }
    }

    fn stop(&mut self, number: usize, role: &str, dice: &mut Dice) -> Injected {
        let what = format!("the {role} {number} is stopped");
        let injected = self.promoting(what, ms(dice, 100, 5000));
        self.all.nodes[number].stall();
        self.nodes[number] = State::Stopped;
        self.misses(number);
        self.later.after(injected.lasts, Then::Resume(number));
        injected
    }

    fn fail_over(&self, owner: usize, by_force: bool) -> Injected {
        let Some(replica) = self.replica(owner) else {
            return Injected::nothing("the owner has no replica now");
        };
        let words: &[&str] = if by_force {
            &["CLUSTER", "FAILOVER", "TAKEOVER"]
        } else {
            &["CLUSTER", "FAILOVER"]
        };
        let injected = self.promoting(words.join(" "), Duration::ZERO);
        match tell(&self.all.nodes[replica], words) {
            Some(Value::Okay) => injected,
            _ => Injected::nothing("the replica doesn't do that now"),
        }
    }

    fn disturb_line(&mut self, fault: &str, owner: usize, dice: &mut Dice) -> Injected {
        let injected = self.lines[owner].disturb(fault, dice);
        self.disturbed[owner] = true;
        // Its replica comes by that line, too.
        if let Some(replica) = self.replica(owner) {
            self.misses(replica);
        }
        self.later.after(injected.lasts, Then::Open);
        let what = format!("{} (node {owner})", injected.what);
        Injected { what, ..injected }
    }

    /// A slot that is being moved is on two nodes.
    fn begin_move(&mut self, from: usize, dice: &mut Dice) -> Injected {
        if self.lacking().is_some() {
            return Injected::nothing("not all is well");
        }
        let is_primary = |number: &usize| {
            let view = self.view(*number);
            view.is_some_and(|view| view.primary_of_own().is_none())
        };
        let others = (0..NODES).filter(|&number| number != from);
        let others: Vec<usize> = others.filter(is_primary).collect();
        if others.is_empty() {
            return Injected::nothing("there is no other primary");
        }
        let to = dice.pick(&others);
        self.moving = Some((from, to));
        if self.open_move(from, to) && dice.chance(50) {
            self.move_keys(3);
        }
        let time = ms(dice, 20, 1500);
        self.later.after(time, Then::Move);
        let injected = Injected::new(format!("the slot moves from {from} to {to}"), time);
        Injected {
            promotes: true,
            ..injected
        }
    }

    fn open_move(&self, from: usize, to: usize) -> bool {
        self.set_slot(to, &["IMPORTING", &self.ids[from]])
            && self.set_slot(from, &["MIGRATING", &self.ids[to]])
    }

    fn set_slot(&self, node: usize, words: &[&str]) -> bool {
        let words = [&["CLUSTER", "SETSLOT", &self.slot], words].concat();
        let answer = ask_within(PATIENCE, &self.all.nodes[node].socket(), &words);
        answer == Some(Value::Okay)
    }

    /// Moves that many keys at most; whether none were left.
    fn move_keys(&self, most: usize) -> bool {
        let Some((from, to)) = self.moving else {
            return true;
        };
        let socket = self.all.nodes[from].socket();
        let most = most.to_string();
        let list = ["CLUSTER", "GETKEYSINSLOT", &self.slot, &most];
        let keys = ask_within(PATIENCE, &socket, &list);
        let Some(Ok(keys)) = keys.map(redis::from_redis_value::<Vec<String>>) else {
            return false;
        };
        let port = self.all.nodes[to].port.to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "100"];
        words.extend(["REPLACE", "KEYS"]);
        words.extend(keys.iter().map(String::as_str));
        if !keys.is_empty() {
            ask_within(PATIENCE, &socket, &words);
        }
        keys.is_empty()
    }

    /// Moves what is left; whether that was all.
    fn finish_move(&mut self) -> bool {
        let Some((from, to)) = self.moving else {
            return true;
        };
        let slot = self.slot.parse().unwrap();
        let [old, new] = [from, to].map(|number| self.view(number));
        let (Some(old), Some(new)) = (old, new) else {
            return false;
        };
        let words = ["NODE", &self.ids[to]];
        // It may have been said before, without an answer in time.
        if new.owner(slot).as_ref() != Some(&self.ids[to]) {
            if old.primary_of_own().is_some() || new.primary_of_own().is_some() {
                self.give_up_move();
                return true;
            }
            let is_moved = self.open_move(from, to) && (0..20).any(|_| self.move_keys(100));
            if !is_moved || !self.set_slot(to, &words) {
                return false;
            }
        }
        if old.owner(slot).as_ref() != Some(&self.ids[to]) && !self.set_slot(from, &words) {
            return false;
        }
        for other in (0..NODES).filter(|other| ![from, to].contains(other)) {
            if self.nodes[other] == State::Running {
                self.set_slot(other, &words);
            }
        }
        self.moving = None;
        // The replicas get the keys a moment later, and nobody has waited for that.
        (0..NODES).for_each(|number| self.is_behind(number));
        true
    }

    /// A replica has taken the place of one of the two, as on a busy machine a node was too slow for the
    /// others. It doesn't know of the move, and what was moved may be lost.
    fn give_up_move(&mut self) {
        for number in 0..NODES {
            self.set_slot(number, &["STABLE"]);
        }
        self.moving = None;
        let what = "the slot's move is given up, as a node was replaced meanwhile";
        let injected = Injected::at_once(what).losing(Loss::Everything);
        self.noticed.push(Injected {
            promotes: true,
            ..injected
        });
    }

    /// Ends what is left of a move on a node that didn't hear that it was given up: such a node takes no news of the
    /// slot's owner from the others.
    fn close_moves(&self) {
        let is_open = |number: &usize| {
            let view = self.view(*number);
            view.is_some_and(|view| view.is_moving(&self.slot))
        };
        if self.moving.is_none() {
            for number in (0..NODES).filter(is_open) {
                self.set_slot(number, &["STABLE"]);
            }
        }
    }

    /// Gives the slot to a primary where it is nobody's: a node that had just got it was replaced by a replica that
    /// didn't know of it, and may still count itself as its owner. A person would do that with `redis-cli --cluster fix`.
    fn adopt_slot(&mut self) {
        let slot = self.slot.parse().unwrap();
        let is_owned = |number: usize| {
            let view = self.view(number)?;
            let is_own = view.owner(slot).as_ref() == Some(&self.ids[number]);
            Some(is_own && view.primary_of_own().is_none())
        };
        let all: Option<Vec<bool>> = (0..NODES).map(is_owned).collect();
        let is_missing = all.is_some_and(|all| !all.contains(&true));
        if !is_missing || self.moving.is_some() {
            self.unowned = None;
            return;
        }
        if self.unowned.get_or_insert_with(Instant::now).elapsed() < SETTLED {
            return;
        }
        let is_primary = |number: &usize| {
            let view = self.view(*number);
            view.is_some_and(|view| view.primary_of_own().is_none())
        };
        let Some(primary) = (0..NODES).find(is_primary) else {
            return;
        };
        (0..NODES).for_each(|number| {
            self.set_slot(number, &["STABLE"]);
        });
        self.set_slot(primary, &["NODE", &self.ids[primary]]);
        tell(&self.all.nodes[primary], &["CLUSTER", "BUMPEPOCH"]);
        self.unowned = None;
        let what = format!("nobody had the slot, and {primary} has it now, without its keys");
        let injected = Injected::at_once(what).losing(Loss::Everything);
        self.noticed.push(Injected {
            promotes: true,
            ..injected
        });
    }

    fn fill(&mut self, number: usize, dice: &mut Dice) -> Injected {
        tell(&self.all.nodes[number], words!("CONFIG SET maxmemory 1"));
        let time = ms(dice, 200, 3000);
        self.later.after(time, Then::Free(number));
        Injected::new(format!("the memory of {number} is full"), time)
    }

    /// One that is neither the owner nor its replica; the others of its kind all run.
    fn another(&self, owner: usize, dice: &mut Dice) -> Option<usize> {
        let replica = self.replica(owner)?;
        let runs = |number: &usize| self.nodes[*number] == State::Running;
        let others = (0..NODES).filter(|number| ![owner, replica].contains(number));
        let others: Vec<usize> = others.filter(runs).collect();
        (others.len() == NODES - 2).then(|| dice.pick(&others))
    }

    /// Whether a node is well, and, if it is a replica, has what its primary had a moment ago.
    fn is_well(&self, number: usize, offsets: &HashMap<String, u64>) -> bool {
        let node = &self.all.nodes[number];
        let state = text(tell(node, &["CLUSTER", "INFO"]));
        let Some(view) = self.view(number) else {
            return false;
        };
        let fields = replication(node);
        let field = |name: &str| fields.get(name).map_or("", String::as_str);
        let follows = match view.primary_of_own() {
            None => field("role") == "master" && field("connected_slaves") != "0",
            Some(primary) => {
                let has = field("slave_repl_offset").parse().ok();
                field("master_link_status") == "up" && has >= offsets.get(primary).copied()
            }
        };
        state.contains("cluster_state:ok") && !view.names_failed() && follows
    }
}

/// The fields of a node's INFO about replication.
fn replication(node: &Redis) -> HashMap<String, String> {
    let info = text(tell(node, &["INFO", "replication"]));
    let fields = info.lines().filter_map(|line| line.trim().split_once(':'));
    fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// What CLUSTER NODES said: for each node its id, address, flags, primary, and more, then its slots.
struct View(Vec<Vec<String>>);

impl View {
    fn of(text: &str) -> Self {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        Self(text.lines().map(words).collect())
    }

    /// The id of the primary that has a slot.
    fn owner(&self, slot: u16) -> Option<String> {
        let has = |range: &String| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let ends = [first, last].map(str::parse::<u16>);
            matches!(ends, [Ok(first), Ok(last)] if (first..=last).contains(&slot))
        };
        let mut nodes = self.0.iter();
        let owner = nodes.find(|words| words.iter().skip(8).any(has))?;
        Some(owner[0].clone())
    }

    /// Whether the node itself gives or takes the slot: `[SLOT->-ID]`, `[SLOT-<-ID]`.
    fn is_moving(&self, slot: &str) -> bool {
        let start = format!("[{slot}-");
        let mut words = self.0.iter().flat_map(|words| words.iter().skip(8));
        words.any(|word| word.starts_with(&start))
    }

    /// The primary of the node itself, if it is a replica.
    fn primary_of_own(&self) -> Option<&String> {
        let mut nodes = self.0.iter();
        let own = nodes.find(|words| words[2].contains("myself"))?;
        (own[3] != "-").then(|| &own[3])
    }

    fn names_failed(&self) -> bool {
        let is_failed = |flags: &str| flags.contains("fail") || flags.contains("handshake");
        self.0.iter().any(|words| is_failed(&words[2]))
    }
}

impl Topology for Sharded {
    fn described(&self) -> String {
        let data = if self.keeps_data { "all" } else { "nothing" };
        format!(
            "a cluster of three primaries with a replica each; a node that dies keeps {data}; clocks up to {APART} ms apart"
        )
    }

    fn url(&self) -> String {
        let each = self.lines.iter();
        let hosts: Vec<String> = each
            .map(|line| format!("127.0.0.1:{}", line.port))
            .collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    fn options(&self) -> Vec<String> {
        ["--sync", "all"].map(str::to_owned).to_vec()
    }

    fn ttls(&self) -> (u64, u64) {
        (3000, 9000)
    }

    fn prefix(&self) -> &'static str {
        "{redlock}:"
    }

    fn plain_address(&self) -> Option<(String, u16)> {
        let owner = self.owner()?;
        Some(("127.0.0.1".into(), self.lines[owner].port))
    }

    fn observer(&self) -> Option<&Redis> {
        let owner = self.owner()?;
        (self.nodes[owner] == State::Running).then(|| &self.all.nodes[owner])
    }

    fn faults(&self) -> &'static [&'static str] {
        &[
            "owner killed",
            "owner killed",
            "owner restarted",
            "owner stopped",
            "owner stopped",
            "failover asked",
            "failover asked",
            "takeover",
            "takeover",
            "replica killed",
            "replica stopped",
            "another killed",
            "slot moved",
            "slot moved",
            "memory full",
            "line slow",
            "line reset",
            "line held",
            "line silent",
            "line refused",
            "replies lost",
            "clients reset",
            "a client reset",
            "writes paused",
            "all paused",
            "scripts flushed",
            "slow command",
            "a lock deleted",
            "a key deleted",
        ]
    }

    fn inject(&mut self, fault: &str, dice: &mut Dice) -> Injected {
        let Some(owner) = self.owner() else {
            return Injected::nothing("no node has the slot");
        };
        if fault.starts_with("line") || fault == "replies lost" {
            return self.disturb_line(fault, owner, dice);
        }
        if self.moving.is_some() {
            return Injected::nothing("the slot is being moved");
        }
        if let Some(deed) = fault.strip_prefix("replica ") {
            return match (self.replica(owner), deed) {
                (None, _) => Injected::nothing("the owner has no replica now"),
                (Some(replica), "killed") => self.kill(replica, "replica", dice),
                (Some(replica), _) => self.stop(replica, "replica", dice),
            };
        }
        if fault == "another killed" {
            return match self.another(owner, dice) {
                Some(number) => self.kill(number, "node", dice),
                None => Injected::nothing("another one is missing already"),
            };
        }
        match (fault, self.nodes[owner]) {
            (_, State::Dead) => Injected::nothing("the owner is dead"),
            ("owner killed", _) => self.kill(owner, "owner", dice),
            ("owner restarted", _) => self.restart(owner, dice),
            (_, State::Stopped) => Injected::nothing("the owner is stopped"),
            ("owner stopped", _) => self.stop(owner, "owner", dice),
            ("failover asked", _) => self.fail_over(owner, false),
            ("takeover", _) => self.fail_over(owner, true),
            ("slot moved", _) => self.begin_move(owner, dice),
            ("memory full", _) => self.fill(owner, dice),
            (fault, State::Running) => disturb(&self.all.nodes[owner], fault, dice),
        }
    }

    fn noticed(&mut self) -> Vec<Injected> {
        std::mem::take(&mut self.noticed)
    }

    fn settles_in(&self) -> Duration {
        SETTLED
    }

    fn later(&mut self) -> &mut Later {
        &mut self.later
    }

    fn carry_out(&mut self, then: Then) {
        match then {
            Then::Resume(number) => {
                if self.nodes[number] == State::Stopped {
                    self.all.nodes[number].resume();
                    self.nodes[number] = State::Running;
                }
            }
            // The empty one would have the slot again, and its replica be empty as well.
            Then::Launch(number)
                if !self.keeps_data && self.owner().is_none_or(|of| of == number) =>
            {
                self.later.after(AGAIN, then);
            }
            Then::Launch(number) | Then::Restart(number) => {
                self.all.nodes[number].launch_again();
                self.nodes[number] = State::Running;
            }
            Then::Free(number) => {
                let node = &self.all.nodes[number];
                let told = tell(node, &["CONFIG", "SET", "maxmemory", "0"]);
                if told.is_none() && self.nodes[number] != State::Dead {
                    self.later.after(AGAIN, then);
                }
            }
            Then::Open => {
                self.lines.iter().for_each(Line::open);
                self.disturbed = [false; NODES];
            }
            Then::Move => {
                if !self.finish_move() {
                    self.later.after(AGAIN, then);
                }
            }
            Then::SetClock(_)
            | Then::ResumeSentinel(_)
            | Then::LaunchSentinel(_)
            | Then::Mend(_)
            | Then::LetIn(_) => unreachable!("nothing of the kind is here"),
        }
    }

    fn look_after(&mut self) {
        if self.looked.elapsed() < LOOKING {
            return;
        }
        self.close_moves();
        self.adopt_slot();
        self.notice();
        if self.missing != [None; NODES] && self.lacking().is_none() {
            self.missing = [None; NODES];
        }
        self.looked = Instant::now();
    }

    fn lacking(&mut self) -> Option<String> {
        let Self {
            nodes,
            disturbed,
            moving,
            ..
        } = &*self;
        if *nodes != [State::Running; NODES] || *disturbed != [false; NODES] || moving.is_some() {
            return Some(format!(
                "nodes {nodes:?}, lines {disturbed:?}, moving {moving:?}"
            ));
        }
        if let Some(silent) = self.all.nodes.iter().find(|node| !answers(node)) {
            return Some(format!("the node at {} doesn't answer", silent.port));
        }
        let offset = |number: usize| {
            let fields = replication(&self.all.nodes[number]);
            let offset = fields.get("master_repl_offset")?.parse().ok()?;
            Some((self.ids[number].clone(), offset))
        };
        let offsets: HashMap<String, u64> = (0..NODES).filter_map(offset).collect();
        let ill = (0..NODES).find(|&number| !self.is_well(number, &offsets))?;
        let node = &self.all.nodes[ill];
        let said = |words: &[&str]| text(tell(node, words));
        let (nodes, info) = (said(&["CLUSTER", "NODES"]), said(&["INFO", "replication"]));
        Some(format!("node {ill}: {nodes}\n{info}"))
    }
}
