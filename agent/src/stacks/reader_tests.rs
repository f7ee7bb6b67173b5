use std::collections::HashSet;

use super::*;

fn reader() -> Reader {
    let patience = Duration::from_millis(200);
    Reader { patience, ..Reader::start(true).unwrap() }
}

fn whose(owner: &str) -> Whose<'_> {
    Whose { owner, pid: Pid(u32::MAX / 2), deadline: Instant::now() + Duration::from_secs(3600) }
}

fn device(name: &str) -> Place {
    Place::Device(name.into())
}

/// Runs work that hangs until the sender is dropped.
fn hang(reader: &mut Reader, owner: &str, place: Place) -> (mpsc::Sender<()>, Result<(), Unread>) {
    let (release, released) = mpsc::channel::<()>();
    let result = reader.run(whose(owner), place, move |_| released.recv().unwrap_or_default());
    (release, result)
}

#[test]
fn a_read_that_hangs_stops_its_owner_and_its_device_only() {
    let mut reader = reader();
    let (release, result) = hang(&mut reader, "a", device("0:1"));
    assert_eq!(result, Err(Unread::Hangs));
    let mut can = |owner, place| reader.run(whose(owner), place, |_| 7);
    assert_eq!(can("a", device("0:2")), Err(Unread::Hangs));
    assert_eq!(can("b", device("0:1")), Err(Unread::Hangs));
    assert_eq!(can("b", device("0:2")), Ok(7));
    assert_eq!(can("b", Place::Own), Ok(7));
    // Work that comes to this device later does not wait for it, either.
    let beats = reader.run(whose("b"), Place::Own, |pulse| {
        [device("0:1"), device("0:2")].map(|place| {
            pulse.at(place);
            pulse.beat().is_ok()
        })
    });
    assert_eq!(beats, Ok([false, true]));
    // Once the server has answered and some time has passed, all files are read again.
    drop(release);
    while reader.blocked.hanging() > 0 {
        thread::yield_now();
    }
    assert!(reader.avoids_owner(whose("a")), "too soon");
    reader.blocked.hung()[0].since = Instant::now().checked_sub(AVOIDED_FOR).unwrap();
    assert_eq!(reader.run(whose("a"), device("0:1"), |_| 7), Ok(7));
}

#[test]
fn a_pod_has_one_thread_that_hangs_whichever_of_its_containers_is_read() {
    let path = |pod: char, container: &str| {
        let pod = format!("{}_1111_2222_3333_444444444444", pod.to_string().repeat(8));
        let id = container.repeat(64);
        format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{id}.scope")
    };
    let (one, other) = (owner_at(&path('a', "1")), owner_at(&path('a', "2")));
    assert_eq!((&*one, &one), ("pod aaaaaaaa-1111-2222-3333-444444444444", &other));
    let mut reader = reader();
    let (_release, result) = hang(&mut reader, &one, device("0:1"));
    assert_eq!(result, Err(Unread::Hangs));
    assert_eq!(reader.run(whose(&other), device("0:2"), |_| 7), Err(Unread::Hangs));
    assert_eq!(reader.run(whose(&owner_at(&path('b', "1"))), device("0:2"), |_| 7), Ok(7));
    for path in ["/system.slice/a.service", "/system.slice/a.service/b", "/system.slice/a.service/b/c"] {
        assert_eq!(owner_at(path), "/system.slice/a.service");
    }
    assert_eq!(["", "/", "/a"].map(owner_at), ["", "/", "/a"]);
}

#[test]
fn a_process_is_known_by_its_own_cgroup_whoever_asks() {
    let mut reader = reader();
    let own = owner_of(Pid(std::process::id()));
    let (_release, result) = hang(&mut reader, &own, device("0:1"));
    assert_eq!(result, Err(Unread::Hangs));
    let named = Whose { pid: Pid(std::process::id()), ..whose("namespace/pod") };
    assert_eq!(reader.run(named, device("0:2"), |_| 7), Err(Unread::Hangs));
    assert_eq!(reader.run(whose("namespace/pod"), device("0:2"), |_| 7), Ok(7));
}

#[test]
fn only_some_threads_may_hang() {
    let blocked = Blocked::default();
    let mut reader = reader().telling(blocked.clone());
    let mut hanging = Vec::new();
    for number in 0..MAX_HUNG {
        assert_eq!(blocked.why(), None);
        let (release, result) = hang(&mut reader, &number.to_string(), Place::Own);
        assert_eq!(result, Err(Unread::Hangs));
        hanging.push(release);
    }
    assert!(blocked.why().is_some_and(|why| why.starts_with("too many reads hang")));
    assert_eq!(reader.run(whose("another"), Place::Own, |_| 7), Err(Unread::Hangs));
    hanging.pop();
    while blocked.why().is_some() {
        thread::yield_now();
    }
    assert_eq!(reader.run(whose("another"), Place::Own, |_| 7), Ok(7));
}

#[test]
fn files_are_not_read_without_a_thread() {
    let blocked = Blocked::default();
    let mut reader = Reader::without_threads().telling(blocked.clone());
    assert_eq!(reader.run(whose("namespace/pod"), Place::Own, |_| 7), Err(Unread::Late));
    assert!(blocked.why().is_some_and(|why| why.contains("pids.max")));
}

#[test]
fn what_takes_long_but_reads_does_not_hang() {
    let mut reader = reader();
    let long = |pulse: &Pulse| {
        for _ in 0..20 {
            pulse.beat().unwrap();
            thread::sleep(Duration::from_millis(50));
        }
        7
    };
    assert_eq!(reader.run(whose("a"), Place::Own, long), Ok(7));
    // A thread that computes does not hang, either, also if it ends in the moment in which the patience does.
    let busy = |_: &Pulse| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {}
        7
    };
    reader.patience = Duration::from_millis(1);
    let ends: HashSet<_> = (0..500).map(|_| reader.run(whose("a"), Place::Own, busy)).collect();
    assert_eq!(ends, HashSet::from([Ok(7)]));
}

#[test]
fn what_has_no_time_left_is_late_and_the_thread_goes_on() {
    let mut reader = reader();
    let soon = Whose { deadline: Instant::now() + Duration::from_millis(20), ..whose("a") };
    let endless = |pulse: &Pulse| while pulse.beat().is_ok() {};
    assert_eq!(reader.run(soon, Place::Own, endless), Err(Unread::Late));
    assert_eq!(reader.run(soon, Place::Own, |_| ()), Err(Unread::Late));
    assert_eq!(reader.run(whose("a"), Place::Own, |_| 7), Ok(7));
}

#[test]
fn files_are_read_by_a_thread_that_can_do_nothing_else() {
    let socket = reader().run(whose("a"), Place::Own, |_| std::net::UdpSocket::bind("127.0.0.1:0").map(drop));
    assert_eq!(socket.unwrap().unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn time_without_a_cpu_is_not_the_owners() {
    let minute = Duration::from_secs(60);
    let beats = |waited| {
        let pulse = Pulse::new(Instant::now().checked_sub(minute).unwrap(), Place::Own);
        pulse.begin();
        pulse.clock.begin(minute);
        pulse.clock.stand(waited);
        pulse.beat().is_ok()
    };
    assert_eq!([Duration::ZERO, minute / 2, 2 * minute].map(beats), [false, false, true]);
}
