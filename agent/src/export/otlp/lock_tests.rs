use super::*;
use crate::model::lock::Lock;

/// Returns a profile whose first cgroup has waits for two kinds of locks, and other waits.
fn with_locks() -> Profile {
    let mut profile = everything();
    let samples = &mut profile.subjects[0].samples;
    // mutex, user
    for (number, sample) in [8, 12].into_iter().zip(&mut *samples) {
        let Activity::OffCpu { lock, reason, .. } = &mut sample.activity else { panic!() };
        (*lock, *reason) = (Lock::from_abi(number), WaitReason::Futex);
    }
    samples[1].so_far_ns = 1_000;
    profile
}

/// Returns the values and attributes of each profile of this type.
fn read(requests: &[ExportProfilesServiceRequest], kind: &str) -> Vec<Vec<(i64, String)>> {
    let of_request = |request: &ExportProfilesServiceRequest| {
        let dictionary = request.dictionary.clone().unwrap();
        let wanted =
            |profile: &&proto::Profile| string(&dictionary, profile.sample_type.unwrap().type_strindex) == kind;
        let attributes = |sample: &proto::Sample| {
            let attributes = sample.attribute_indices.iter().map(|&index| text(&dictionary, index));
            attributes.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let samples = |profile: &proto::Profile| {
            profile.samples.iter().map(|sample| (sample.values[0], attributes(sample))).collect()
        };
        profiles(request).filter(wanted).map(samples).collect::<Vec<_>>()
    };
    requests.iter().flat_map(of_request).collect()
}

#[test]
fn waits_for_locks_are_a_profile_of_their_own_with_the_kind_of_lock() {
    let requests = requests(&with_locks());
    assert_rules(&requests[0]);
    let row = |value, lock: &str| (value, format!("podperf.lock={lock} podperf.offcpu.reason=futex"));
    // The second cgroup waited for no lock. A wait counts when it ends, with the part that earlier windows have.
    assert_eq!(read(&requests, "lock_wait"), [[row(10, "mutex"), row(5 + 1_000, "user")]]);
    let profile = profiles(&requests[0]).nth(2).unwrap();
    let dictionary = requests[0].dictionary.as_ref().unwrap();
    let period = profile.period_type.unwrap();
    let of = (string(dictionary, period.type_strindex), string(dictionary, period.unit_strindex), profile.period);
    assert_eq!(of, ("lock_wait", "count", 1));
}

#[test]
fn the_waits_off_the_cpu_are_the_same_with_locks_and_without() {
    let mut without = with_locks();
    for sample in without.subjects.iter_mut().flat_map(|subject| &mut subject.samples) {
        if let Activity::OffCpu { lock, .. } = &mut sample.activity {
            *lock = None;
        }
    }
    for kind in ["off_cpu", "samples"] {
        assert_eq!(read(&requests(&with_locks()), kind), read(&requests(&without), kind));
    }
    assert!(read(&requests(&without), "lock_wait").is_empty());
    let dictionary = requests(&without).remove(0).dictionary.unwrap();
    assert!(dictionary.string_table.iter().all(|text| !text.contains("lock")), "{:?}", dictionary.string_table);
}

#[test]
fn a_lock_is_never_one_attribute_more_than_pyroscope_takes() {
    let mut profile = with_locks();
    let sample = &mut profile.subjects[0].samples[0];
    sample.stack = Arc::new(Stack { unwind: Unwind::Broken, ..(*sample.stack).clone() });
    if let Activity::OffCpu { waker, .. } = &mut sample.activity {
        let (thread, subject) = ("redis".to_owned(), "shop/cart-0/redis".to_owned());
        *waker = Some(Arc::new(Waker { thread, subject, stack: Some("main".to_owned()) }));
    }
    let words = [&DEFAULT[..], &[SampleAttribute::Waker]].concat();
    let shape = Shape { sample_attributes: words, ..shape(Preset::Pyroscope) };
    let request = super::super::requests(&profile, &shape, NODE).remove(0);
    let most = profiles(&request).flat_map(|it| &it.samples).map(|it| it.attribute_indices.len()).max();
    assert_eq!(most, Some(SampleAttribute::MOST));
    for preset in [Preset::Pyroscope, Preset::Parca, Preset::Devfiler] {
        let request = super::super::requests(&profile, &Shape { preset, ..shape.clone() }, NODE).remove(0);
        assert_rules(&request);
    }
}
