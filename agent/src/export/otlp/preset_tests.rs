use super::*;
use crate::pods::{ContainerInfo, Pod, Workload, WorkloadKind};

const PRESETS: [Preset; 4] = [Preset::Generic, Preset::Pyroscope, Preset::Parca, Preset::Devfiler];

/// Returns a container, whose resource has all attributes.
fn container() -> Subject {
    let workload = Workload { kind: WorkloadKind::Deployment, name: "web".into() };
    let info = ContainerInfo {
        pod: Arc::new(Pod { workload, ..Pod::example() }),
        name: "app".into(),
        image: "image".into(),
        id: "ab".repeat(32).parse().unwrap(),
    };
    let subject = Subject::Container(Arc::new(info));
    assert_eq!(resource(&subject, NODE).len(), 10);
    subject
}

/// Returns as many configured attributes as a preset allows, and at most 18, since receivers other than Pyroscope have no
/// limit of their own.
fn configured(preset: Preset) -> Vec<(String, String)> {
    let count = preset.max_resource_attributes().min(18);
    (0..count).map(|row| (format!("key.{row}"), row.to_string())).collect()
}

#[test]
fn each_preset_keeps_the_rules_of_its_receiver_split_or_not() {
    let wanted = [&DEFAULT[..], &[SampleAttribute::Waker]].concat();
    for (preset, rules) in [
        (Preset::Pyroscope, rules::pyroscope as fn(&ExportProfilesServiceRequest) -> Vec<String>),
        (Preset::Parca, rules::parca),
        (Preset::Devfiler, rules::devfiler),
    ] {
        let shape = Shape { preset, sample_attributes: wanted.clone(), resource: configured(preset) };
        let with = |count: usize| {
            let mut profile = everything();
            profile.subjects.extend(super::profile(vec![("/c", many(count, 2))]).subjects);
            profile.subjects.iter_mut().for_each(|subject| subject.subject = container());
            profile
        };
        let small = Limits { bytes: 20_000, samples: 90 };
        for (profile, limits) in [(with(16_001), Limits::default()), (with(400), small)] {
            let requests = super::super::split(&profile, &shape, NODE, limits);
            assert!(requests.len() > 1);
            for request in &requests {
                assert_rules(request);
                assert_eq!(rules(request), Vec::<String>::new(), "{preset:?}");
            }
        }
    }
}

#[test]
fn what_is_told_apart_by_presets_breaks_the_rules_of_others() {
    let request = |preset| super::super::requests(&everything(), &shape(preset), NODE).remove(0);
    let generic = request(Preset::Generic);
    assert!(rules::parca(&generic).contains(&"a user frame with lines".to_owned()));
    let refused = rules::devfiler(&generic);
    assert!(refused.iter().any(|rule| rule.contains("htlhash")) && refused.iter().any(|rule| rule.contains("[3]")));
    assert_eq!(rules::pyroscope(&generic), Vec::<String>::new());
}

#[test]
fn parca_gets_names_of_kernel_frames_only_and_devfiler_a_timestamp_a_sample() {
    let names = |preset| {
        let request = super::super::requests(&everything(), &shape(preset), NODE).remove(0);
        let dictionary = request.dictionary.unwrap();
        let names = dictionary.function_table.iter().skip(1);
        names.map(|row| string(&dictionary, row.name_strindex).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(Preset::Parca), ["schedule"]);
    assert!(names(Preset::Pyroscope).contains(&"inner".to_owned()));
    let request = super::super::requests(&everything(), &shape(Preset::Devfiler), NODE).remove(0);
    let running = profiles(&request).nth(1).unwrap();
    let samples: Vec<_> = running.samples.iter().map(|it| (&it.values[..], it.timestamps_unix_nano.len())).collect();
    assert_eq!(samples, [(&[1, 1, 1][..], 3), (&[1, 1, 1][..], 3)]);
}

#[test]
fn every_preset_keeps_every_sample() {
    for preset in PRESETS {
        let requests = super::super::split(&everything(), &shape(preset), NODE, Limits { bytes: 1_200, samples: 2 });
        let sum = |kind: &str| -> i64 {
            let of_kind = requests.iter().flat_map(|request| {
                let dictionary = request.dictionary.as_ref().unwrap();
                profiles(request).filter(move |it| string(dictionary, it.sample_type.unwrap().type_strindex) == kind)
            });
            of_kind.flat_map(|profile| &profile.samples).flat_map(|sample| &sample.values).sum()
        };
        assert_eq!((sum("off_cpu"), sum("samples")), (143, 6), "{preset:?}");
    }
}
