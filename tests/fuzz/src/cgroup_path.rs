//! A cgroup's path may be any bytes: a user who may create cgroups names them.

use podperf::{
    cgroups::{DirKind, FlatPath, KubePath, QosClass},
    model::ids::PodRef,
};

pub(crate) fn check(bytes: &[u8]) {
    let path = &*String::from_utf8_lossy(bytes);
    if let Some(flat) = FlatPath::parse(path) {
        let name = &path[flat.root_len..flat.dir_len];
        assert!(name.starts_with('/') && name.contains(&flat.id.to_string()));
        assert_eq!(FlatPath::parse(&format!("{}/nested/x", &path[..flat.dir_len])), Some(flat));
    }
    let Some(place) = KubePath::parse(path) else { return };
    let (root, below) = path.split_at(place.root_len);
    let (own, nested) = path.split_at(place.dir_len);
    assert!(below.starts_with('/') && (nested.is_empty() || nested.starts_with('/')));
    assert!(own.contains("kubepods"));
    // A slice repeats the names above `kubepods`, and these may be any names.
    let below = &below[..own.len() - root.len()];
    let below = &below[below.rfind("kubepods").unwrap_or(0)..];

    let spellings = match place.pod {
        PodRef::Uid(uid) => [uid.to_string(), uid.to_string().replace('-', "_")],
        PodRef::Static(hash) => [hash.to_string(), hash.to_string()],
    };
    assert!(spellings.iter().any(|spelling| below.contains(&format!("pod{spelling}"))));
    for qos in [QosClass::Burstable, QosClass::BestEffort] {
        assert_eq!(below.contains(qos.name()), place.qos == qos);
    }
    if let Some(container) = place.container {
        let name = own.rsplit('/').next().unwrap_or_default();
        assert!(name.contains(&container.id.to_string()));
        assert_eq!(below.contains("conmon"), container.kind == DirKind::Monitor);
        assert_eq!(KubePath::parse(&format!("{path}/nested/x")), Some(place));
        assert_eq!(KubePath::parse(&format!("{own}{path}")), Some(place));
    }
    assert_eq!(KubePath::parse(own), Some(place));
    assert_eq!(KubePath::parse(root), None);
}
