//! Additions to the planner's catalogue from any bytes, alone and as the body of an entry: refused in
//! few harmless words, or entries with which every question has an answer or a refusal.
#![no_main]

use std::sync::LazyLock;

use crowfly_plan::assess::Assessment;
use crowfly_plan::catalog::{Catalog, Kind};
use crowfly_plan::cluster::{Cluster, Overrides, ServerSpec};
use crowfly_plan::layout::Layout;
use crowfly_plan::workload::{ModelSpec, Workload};
use crowfly_route::terminal::is_harmful;
use libfuzzer_sys::fuzz_target;

/// Reading it takes longer than reading what is added.
static BUILT_IN: LazyLock<Catalog> = LazyLock::new(Catalog::built_in);
const BASIS: &str = "\nsources = [\"fuzz\"]\nconfidence = \"high\"\n";

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    check(text);
    for kind in Kind::ALL {
        check(&format!("[[{kind}]]\nid = \"fuzzed\"{BASIS}{text}"));
    }
});

fn check(text: &str) {
    let built_in = &*BUILT_IN;
    let mut catalog = built_in.clone();
    if let Err(refusal) = catalog.add(text) {
        let said = refusal.to_string();
        assert!(
            !refusal.code().is_empty() && said.chars().count() < 500,
            "{said}"
        );
        assert!(!said.chars().any(is_harmful), "{said}");
        // What was refused added nothing.
        let (before, after) = (built_in.list(None, None), catalog.list(None, None));
        assert_eq!(before.len(), after.len());
        return;
    }
    let known = built_in.list(None, None).len();
    assert!(
        catalog.list(None, None).len() >= known,
        "nothing that is known is lost"
    );
    for server in catalog.servers.iter().filter(|entry| entry.basis.added) {
        let _ = Layout::of(&catalog, &server.id);
        let Ok(spec) = ServerSpec::from_catalog(&catalog, &server.id, &Overrides::default()) else {
            continue;
        };
        let model = ModelSpec::from_catalog(&catalog, "70b")
            .unwrap_or_else(|_| ModelSpec::of_size(70e9).expect("a size within the range"));
        let Ok(cluster) = Cluster::new(spec, 2, 1.0) else {
            continue;
        };
        let answer = Assessment::of(&cluster, &Workload::data_parallel(model), None);
        if let Ok(answer) = answer {
            serde_json::to_string(&answer).expect("every figure is a number");
        }
    }
}
