//! The accounts. Pure.
//!
//! The ledger adds each delta to the account of the row that counts its cgroup. So a nested cgroup rolls up, and a dead
//! cgroup leaves its counts where they were. A container that restarts under its name adds to the same account, and no
//! account ever falls. Deltas of a cgroup without a known path or name wait for it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    Level, Names, NotExported, Owner, Row, RowRules, RowUsage, Snapshot, Subject, UNRESOLVED, Verdict,
    node_time::NodeTime,
    pods_own::PodsOwn,
    zero_first::{Scrapes, ZeroFirst},
};
use crate::{
    cgroups::Place,
    model::{facts::Facts, ids::CgroupId, usage::Usage},
    pods::{ContainerInfo, Outlook, Pod},
};

/// Time for which counts wait for their cgroup's path, in nanoseconds.
const PATH_PATIENCE_NS: u64 = 30_000_000_000;
/// Largest number of cgroups whose counts wait. Above it, counts become unresolved at once.
const MAX_WAITING: usize = 16_384;

/// Largest number of ended accounts. Above it, the accounts that ended first are closed before their grace period is
/// over.
pub(super) const MAX_ENDED: usize = 8192;

/// Duration of [`Ledger::show_found_counts`], in nanoseconds; names may come late.
const FOUND_FOR_NS: u64 = 120_000_000_000;

/// The ledger of all accounts.
#[derive(Debug)]
pub struct Ledger {
    pub(super) accounts: HashMap<Row, Account>,
    pub(super) waiting: HashMap<CgroupId, Waiting>,
    pub(super) retired: Usage,
    pub(super) idle: Usage,
    /// Number of shown accounts of pods and containers.
    pub(super) pod_rows: usize,
    pub(super) not_exported: [usize; NotExported::ALL.len()],
    /// Number of living directories of containers, and the number of them in pods that the API does not know.
    pub(super) containers: (usize, usize),
    pub(super) settlings: u64,
    /// Number of accounts that were closed before their grace period was over, see [`MAX_ENDED`].
    pub(super) forgotten: u64,
    /// The start of the sums without an account: idle time, and the node's time.
    pub(super) started: SystemTime,
    /// The start of an account that opens now: the last reading in which it had no counts.
    pub(super) opens_at: SystemTime,
    /// The start of each counter, by slot.
    pub(super) counters_started: Vec<SystemTime>,
    /// `CLOCK_MONOTONIC` of the last reading, in nanoseconds; `None` before the first.
    pub(super) read_ns: Option<u64>,
    /// `CLOCK_MONOTONIC` of the reading before the last, in nanoseconds; `None` if another agent took it.
    pub(super) read_before_ns: Option<u64>,
    /// `true` if accounts that open now hold numbers back.
    pub(super) zero_first: bool,
    /// Time from which new accounts may hold numbers back, see [`Ledger::show_found_counts`].
    pub(super) holds_from_ns: u64,
    pub(super) node: NodeTime,
}

#[derive(Debug)]
pub(super) struct Account {
    pub(super) usage: Usage,
    /// Time when its counts were zero. It never moves: to a receiver, a new start means a new series of counts.
    pub(super) started: SystemTime,
    pub(super) pod: Option<Arc<Pod>>,
    pub(super) container: Option<Arc<ContainerInfo>>,
    /// Number of the last settling that found its cgroup alive.
    pub(super) alive_at: u64,
    /// Time when its cgroup was first missed, and the number of exports since.
    pub(super) ended: Option<(u64, u32)>,
    /// `true` once its grace period is over while its pod still exists and may start it again.
    pub(super) hidden: bool,
    /// Numbers held back, see [`RowRules::zero_first`].
    pub(super) zero_first: ZeroFirst,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) usage: Usage,
    pub(super) since_ns: u64,
    /// Copy of the place, since the tree forgets dead cgroups.
    pub(super) place: Option<Place>,
}

impl Ledger {
    /// Creates a ledger without accounts, whose counts begin at `started`.
    #[must_use]
    pub fn new(started: SystemTime) -> Self {
        Self {
            accounts: HashMap::new(),
            waiting: HashMap::new(),
            retired: Usage::default(),
            idle: Usage::default(),
            pod_rows: 0,
            not_exported: Default::default(),
            containers: (0, 0),
            settlings: 0,
            forgotten: 0,
            started,
            opens_at: started,
            counters_started: Vec::new(),
            read_ns: None,
            read_before_ns: None,
            zero_first: false,
            holds_from_ns: 0,
            node: NodeTime::default(),
        }
    }

    /// Notes the time of a reading, by both clocks. Call it before [`Ledger::post`]: accounts that open after this call
    /// start at the previous reading. So a row that comes back starts after the last counts of its previous account.
    pub fn begin_reading(&mut self, taken: SystemTime, now_ns: u64) {
        self.read_before_ns = self.read_ns.filter(|_| self.settlings > 0);
        if let Some(last_ns) = self.read_ns.replace(now_ns) {
            // The wall clock may have been set meanwhile: a start must not be after the first counts.
            let since = Duration::from_nanos(now_ns.saturating_sub(last_ns));
            self.opens_at = taken.checked_sub(since).unwrap_or(taken);
        }
    }

    /// Reveals the numbers whose zero was scraped for long enough. Call it after [`Ledger::begin_reading`].
    pub fn reveal(&mut self, scrapes: Scrapes) {
        let now_ns = self.read_ns.unwrap_or(0);
        self.accounts.values_mut().for_each(|account| account.zero_first.reveal(now_ns, scrapes));
    }

    /// Makes accounts that open within two minutes hold nothing back. The previous agent may have shown their counts
    /// without leaving its accounts: the counts would fall if they were shown as zero now.
    pub const fn show_found_counts(&mut self, now_ns: u64) {
        self.holds_from_ns = now_ns + FOUND_FOR_NS;
    }

    /// Notes the time since the last reading, all CPUs together, in nanoseconds: the time that CPUs were online, and
    /// the time that threads ran. `idle_ns` and `stolen_ns` are running totals.
    pub fn pass_node_time(&mut self, online_ns: u64, ran_ns: u64, idle_ns: u64, stolen_ns: Option<u64>) {
        self.node.pass(online_ns, ran_ns, idle_ns);
        self.node.pass_stolen(stolen_ns);
    }

    /// Adds the deltas of one reading to the accounts, and waiting deltas that now have a name.
    pub fn post(&mut self, deltas: Vec<(CgroupId, Usage)>, names: &Names<'_>, rules: &RowRules, now_ns: u64) {
        self.zero_first = rules.zero_first && now_ns >= self.holds_from_ns;
        if !rules.zero_first {
            self.accounts.values_mut().for_each(|account| account.zero_first = ZeroFirst::off());
        }
        let mut own = PodsOwn::default();
        for (cgroup, delta) in deltas {
            if cgroup == CgroupId::IDLE {
                self.idle.add(&delta);
            } else if let Some((place, owner)) = names.owner_of(cgroup, now_ns)
                && let Some((row, _)) = self.row(place, &owner, rules)
            {
                if self.is_unopened(&row) {
                    own.add(row, &owner, rules.common_row(place), &delta, self.read_before_ns);
                } else {
                    self.account(row, &owner).usage.add(&delta);
                }
            } else if self.waiting.len() < MAX_WAITING || self.waiting.contains_key(&cgroup) {
                let place = names.tree.place(cgroup).cloned();
                let waiting = Waiting { usage: Usage::default(), since_ns: now_ns, place };
                self.waiting.entry(cgroup).or_insert(waiting).usage.add(&delta);
            } else {
                self.account(Row::Cgroup(UNRESOLVED.into()), &Owner::Unresolved).usage.add(&delta);
            }
        }
        for (cgroup, mut waiting) in std::mem::take(&mut self.waiting) {
            if waiting.place.is_none() {
                waiting.place = names.tree.place(cgroup).cloned();
            }
            match &waiting.place {
                Some(place) => {
                    let owner = names.owner(place, now_ns);
                    if let Some((row, _)) = self.row(place, &owner, rules) {
                        if self.is_unopened(&row) {
                            own.add(row, &owner, rules.common_row(place), &waiting.usage, Some(waiting.since_ns));
                        } else {
                            self.account(row, &owner).usage.add(&waiting.usage);
                        }
                        continue;
                    }
                }
                None if now_ns.saturating_sub(waiting.since_ns) > PATH_PATIENCE_NS => {
                    self.account(Row::Cgroup(UNRESOLVED.into()), &Owner::Unresolved).usage.add(&waiting.usage);
                    continue;
                }
                None => {}
            }
            self.waiting.insert(cgroup, waiting);
        }
        for (row, owner, usage) in own.decide(now_ns) {
            self.account(row, &owner).usage.add(&usage);
        }
    }

    /// Opens the accounts of containers that live but have not run yet. Closes accounts whose cgroup has been gone for
    /// the grace period and that were exported twice since. A container that its pod will start again has not ended.
    /// Above `MAX_ENDED`, the accounts that ended first are closed at once; the node's sum keeps their counts.
    pub fn settle(&mut self, names: &Names<'_>, rules: &RowRules, now_ns: u64) {
        self.not_exported = Default::default();
        self.containers = (0, 0);
        self.settlings += 1;
        let settling = self.settlings;
        for place in names.tree.living() {
            let owner = names.owner(place, now_ns);
            if matches!(owner, Owner::Cgroup) {
                if let Some(account) = self.accounts.get_mut(&Row::Cgroup(Arc::clone(&place.path))) {
                    account.alive_at = settling;
                }
                continue;
            }
            if place.is_container() {
                self.containers.0 += 1;
                self.containers.1 += usize::from(matches!(owner, Owner::Unresolved));
            }
            let Some((row, withheld)) = self.row(place, &owner, rules) else { continue };
            if self.is_unopened(&row) {
                continue;
            }
            // Sandboxes look like containers, so the owner decides.
            if let Some(why) = withheld
                && place.is_container()
                && matches!(owner, Owner::Container(_))
            {
                self.not_exported[why as usize] += 1;
            }
            self.account(row, &owner).alive_at = settling;
        }
        let outlook = |row: &Row| match (row, names.pods) {
            (Row::Pod { namespace, pod }, Some(pods)) => pods.outlook(namespace, pod, None),
            (Row::Container { namespace, pod, container }, Some(pods)) => {
                pods.outlook(namespace, pod, (!row.is_pods_own()).then_some(container))
            }
            _ => Outlook::Gone,
        };
        let permanent = |row: &Row| matches!(row, Row::Cgroup(path) if &**path == "/" || &**path == UNRESOLVED);
        let grace_ns = u64::try_from(rules.grace.as_nanos()).unwrap_or(u64::MAX);
        let (retired, mut ended) = (&mut self.retired, Vec::new());
        self.accounts.retain(|row, account| {
            if account.alive_at == settling || permanent(row) {
                account.ended = None;
                return true;
            }
            // The previous agent had another level: nothing is added to this account any more.
            if !row.is_at(rules.level) {
                retired.add(&account.usage);
                return false;
            }
            let wanted = account.pod.as_ref().is_none_or(|pod| rules.wants(names.newest(pod)).is_ok());
            let outlook = if wanted { outlook(row) } else { Outlook::Gone };
            if outlook == Outlook::Runs {
                account.ended = None;
                return true;
            }
            let (since_ns, exports) = account.ended.get_or_insert((now_ns, 0));
            if now_ns.saturating_sub(*since_ns) < grace_ns || *exports < 2 || account.zero_first.is_awaited(now_ns) {
                if outlook == Outlook::Gone {
                    ended.push((*since_ns, row.clone()));
                }
                return true;
            }
            if outlook == Outlook::Gone {
                retired.add(&account.usage);
                return false;
            }
            account.hidden = true;
            true
        });
        self.forget_longest_dead(ended);
        self.count_pod_rows();
        self.accounts.values_mut().for_each(|account| account.zero_first.settle(&account.usage));
    }

    fn forget_longest_dead(&mut self, mut ended: Vec<(u64, Row)>) {
        let many = ended.len().saturating_sub(MAX_ENDED);
        ended.sort_unstable();
        for account in ended.iter().take(many).filter_map(|(_, row)| self.accounts.remove(row)) {
            self.retired.add(&account.usage);
            self.forgotten += 1;
        }
    }

    pub(super) fn count_pod_rows(&mut self) {
        let is_pod_row = |(row, account): &(&Row, &Account)| row.is_limited() && !account.hidden;
        self.pod_rows = self.accounts.iter().filter(is_pod_row).count();
    }

    /// Returns the number of container directories that lived at the last settling, and the number of them in pods that
    /// the API does not know.
    #[must_use]
    pub const fn containers(&self) -> (usize, usize) {
        self.containers
    }

    /// Adds the time by the end of each stack walk ([`crate::model::wait::Unwind`]), which is known only once the
    /// stacks have names. Ignored without an open account.
    pub fn add_unwound(&mut self, subject: &Subject, level: Level, unwound: &Facts) {
        if let Some(account) = subject.row(level).and_then(|row| self.accounts.get_mut(&row)) {
            account.usage.facts.add(unwound);
        }
    }

    /// Returns whether the counts of a subject have an account, or will have none.
    #[must_use]
    pub fn has_account(&self, subject: &Subject, level: Level) -> bool {
        subject.row(level).is_none_or(|row| self.accounts.contains_key(&row))
    }

    /// Notes that the last snapshot was scraped.
    pub fn note_scrape(&mut self) {
        let Some(at_ns) = self.read_ns else { return };
        self.accounts.values_mut().for_each(|account| account.zero_first.note_scrape(at_ns));
    }

    /// Notes that a snapshot was exported.
    pub fn exported(&mut self) {
        for (_, exports) in self.accounts.values_mut().filter_map(|account| account.ended.as_mut()) {
            *exports += 1;
        }
    }

    /// Returns the accounts as they stand.
    #[must_use]
    pub fn snapshot(&self, taken: SystemTime, idle_ns: u64, names: &Names<'_>) -> Snapshot {
        let mut elsewhere = self.retired.clone();
        self.waiting.values().for_each(|waiting| elsewhere.add(&waiting.usage));
        let mut rows = Vec::with_capacity(self.accounts.len());
        let mut pods = BTreeMap::new();
        for (row, account) in &self.accounts {
            if account.hidden {
                elsewhere.add(&account.usage);
                continue;
            }
            if let Some(pod) = &account.pod {
                pods.entry((&pod.namespace, &pod.name)).or_insert_with(|| Arc::clone(names.newest(pod)));
            }
            rows.push(RowUsage {
                row: row.clone(),
                started: account.started,
                container: account.container.clone(),
                usage: account.usage.clone(),
                shown: account.zero_first.shown(),
            });
        }
        rows.sort_unstable_by(|a, b| a.row.cmp(&b.row));
        Snapshot {
            taken,
            started: self.started,
            counters_started: self.counters_started.clone(),
            rows,
            pods: pods.into_values().collect(),
            elsewhere,
            idle_ns,
            unaccounted_ns: self.node.unaccounted_ns,
            stolen_ns: self.node.stolen.map(|(_, stolen_ns)| stolen_ns),
            idle: self.idle.clone(),
            cgroups_tracked: names.tree.len(),
            cgroups_unresolved: self.waiting.len(),
            not_exported: self.not_exported,
            forgotten: self.forgotten,
        }
    }

    /// Returns the present row of an owner, and the reason if the row is not its own. `None` while it has no name.
    fn row(&self, place: &Place, owner: &Owner, rules: &RowRules) -> Option<(Row, Option<NotExported>)> {
        let why = match rules.verdict(place, owner) {
            Verdict::Own(row) if self.has_room(&row, rules) => return Some((row, None)),
            Verdict::Own(_) => Some(NotExported::Limit),
            Verdict::Common(why) => why,
            Verdict::Wait => return None,
        };
        Some((Row::Cgroup(rules.common_row(place).into()), why))
    }

    fn has_room(&self, row: &Row, rules: &RowRules) -> bool {
        !row.is_limited() || self.pod_rows < rules.max_containers || self.is_shown(row)
    }

    fn is_shown(&self, row: &Row) -> bool {
        self.accounts.get(row).is_some_and(|account| !account.hidden)
    }

    /// Returns `true` for a pod's own row whose counts were too small for an account so far, see [`PodsOwn`].
    fn is_unopened(&self, row: &Row) -> bool {
        row.is_pods_own() && !self.is_shown(row)
    }

    fn account(&mut self, row: Row, owner: &Owner) -> &mut Account {
        let of_pod = !matches!(row, Row::Cgroup(_));
        let (of_container, is_limited) = (matches!(row, Row::Container { .. }), row.is_limited());
        let (opens_at, zero_first) = (self.opens_at, self.zero_first);
        let held = || if zero_first { ZeroFirst::hold(&Usage::default()) } else { ZeroFirst::off() };
        let new = || Account { hidden: of_pod, zero_first: held(), ..Account::opened(opens_at) };
        let account = self.accounts.entry(row).or_insert_with(new);
        if of_pod {
            if std::mem::take(&mut account.hidden) {
                self.pod_rows += usize::from(is_limited);
                if zero_first {
                    account.zero_first = ZeroFirst::hold(&account.usage);
                }
            }
            match owner {
                Owner::Container(info) => {
                    account.pod = Some(Arc::clone(&info.pod));
                    account.container = of_container.then(|| Arc::clone(info));
                }
                Owner::Pod(pod) => account.pod = Some(Arc::clone(pod)),
                _ => {}
            }
        }
        account
    }
}

impl Account {
    pub(super) fn opened(started: SystemTime) -> Self {
        Self {
            usage: Usage::default(),
            started,
            pod: None,
            container: None,
            alive_at: 0,
            ended: None,
            hidden: false,
            zero_first: ZeroFirst::off(),
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
