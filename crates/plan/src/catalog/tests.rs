use super::*;

const BASIS: &str = "sources = [\"me\"]\nconfidence = \"high\"";

fn refusal(text: &str) -> CatalogError {
    Catalog::built_in().add(text).expect_err("refused")
}

#[test]
fn the_built_in_catalogue_is_sound_and_every_source_and_name_in_it_is_explained() {
    let catalog = Catalog::built_in();
    let all = catalog.list(None, None);
    assert!(all.len() > 130, "{}", all.len());
    for entry in &all {
        assert!(!entry.summary.is_empty(), "{}", entry.id);
        for key in &entry.basis.sources {
            assert_ne!(catalog.source(key), key, "{}: {key}", entry.id);
        }
    }
    for server in catalog.servers.iter() {
        let facts = &server.facts;
        assert!(catalog.gpus.get(&facts.gpu).is_ok(), "{}", server.id);
        if let Some(nic) = &facts.nic {
            assert!(catalog.nics.get(nic).is_ok(), "{}: {nic}", server.id);
        }
        if let Some(memory) = &facts.memory {
            assert!(
                catalog.memory.get(memory).is_ok(),
                "{}: {memory}",
                server.id
            );
        }
    }
}

#[test]
fn memory_peaks_are_channels_times_rate() {
    for entry in Catalog::built_in().memory.iter() {
        let m = &entry.facts;
        if let (Some(sockets), Some(channels), Some(mts)) = (m.sockets, m.channels, m.mts) {
            let peak = f64::from(sockets) * f64::from(channels) * mts * 8.0 / 1e3;
            assert!((peak - m.peak_gbs).abs() < 1e-9, "{}: {peak}", entry.id);
        }
    }
}

#[test]
fn what_rests_on_memory_alone_or_is_doubtful_is_unverified() {
    let catalog = Catalog::built_in();
    let verified = |id: &str| {
        let entry = catalog.servers.get(id).expect("there");
        (entry.basis.is_verified(), entry.cite())
    };
    assert_eq!(verified("dgx-h100"), (true, "server dgx-h100".into()));
    assert_eq!(
        verified("dgx-a100"),
        (false, "server dgx-a100, unverified".into())
    );
    assert!(!verified("aws-p6e-gb200").0);
}

#[test]
fn given_a_filter_only_what_it_matches_is_listed() {
    let catalog = Catalog::built_in();
    let ids = |kind, filter| -> Vec<&str> {
        catalog
            .list(kind, filter)
            .into_iter()
            .map(|e| e.id)
            .collect()
    };
    assert_eq!(
        ids(Some(Kind::Pcie), None),
        ["gen3", "gen4", "gen5", "gen6"]
    );
    assert_eq!(ids(Some(Kind::Switch), Some("NDR")), ["quantum-2-qm9700"]);
    assert!(ids(None, Some("no such thing")).is_empty());
}

#[test]
fn given_an_addition_it_is_found_and_marked_and_may_replace_what_was_there() {
    let mut catalog = Catalog::built_in();
    let text = format!(
        "[[server]]\nid = \"mine\"\ngpu = \"h100-sxm\"\ngpus = 4\ntransport = \"roce\"\n{BASIS}\n\
         [[pcie]]\nid = \"gen5\"\ngeneration = 5\ngts = 32\nraw_gbs = 60.0\n{BASIS}\n\
         [sources]\nme = \"Measured in our rack\"\n"
    );
    catalog.add(&text).expect("sound");
    let mine = catalog.servers.get("mine").expect("added");
    assert!(mine.basis.added && mine.used().verified);
    assert_eq!(catalog.source("me"), "Measured in our rack");
    assert_eq!(catalog.pcie.get("gen5").expect("there").facts.raw_gbs, 60.0);
    assert_eq!(catalog.pcie.iter().count(), 4);
}

#[test]
fn given_additions_that_are_not_sound_the_error_names_what_and_where_and_nothing_is_added() {
    let code = |text: &str| refusal(text).code();
    assert_eq!(code("x = "), "catalog-not-toml");
    assert_eq!(
        code(&" ".repeat(MAX_CATALOG_BYTES + 1)),
        "catalog-too-large"
    );
    assert_eq!(code("nic = 5"), "catalog-not-a-list");
    assert_eq!(code("[[nic]]\ngbps = 5"), "catalog-bad-id");
    assert_eq!(code("[[nic]]\nid = \"A B\""), "catalog-bad-id");
    assert_eq!(code("[[nic]]\nid = \"a\"\ngbps = 5"), "catalog-no-basis");
    let typo = format!("[[nic]]\nid = \"a\"\ngpbs = 5\n{BASIS}");
    let message = refusal(&typo).to_string();
    assert!(
        message.contains("nic `a`") && message.contains("gpbs"),
        "{message}"
    );
    let negative = format!("[[nic]]\nid = \"a\"\ngbps = -5\n{BASIS}");
    let said = "nic `a` of the catalogue has `gbps` = -5, which must be above zero";
    assert_eq!(refusal(&negative).to_string(), said);
    let endless = format!("[[nic]]\nid = \"a\"\ngbps = inf\n{BASIS}");
    assert_eq!(code(&endless), "catalog-not-positive");
    let long = format!(
        "[[nic]]\nid = \"a\"\ngbps = 1\nvendor = \"{}\"\n{BASIS}",
        "x".repeat(2000)
    );
    assert_eq!(code(&long), "catalog-long-text");
    let kind = refusal(&format!("[[servr]]\nid = \"a\"\n{BASIS}"));
    assert_eq!(kind.hint().as_deref(), Some("nearest: server"));

    let mut catalog = Catalog::built_in();
    let half = format!(
        "[[nic]]\nid = \"first\"\ngbps = 1\n{BASIS}\n[[nic]]\nid = \"b\"\ngbps = 0\n{BASIS}"
    );
    assert!(catalog.add(&half).is_err());
    assert!(catalog.nics.get("first").is_err());
}

#[test]
fn given_numbers_that_no_machine_has_the_error_names_the_range_in_few_digits() {
    for (value, said) in [
        ("1e308", "1e308"),
        ("1e-300", "1e-300"),
        ("9223372036854775807", "9.223372036854776e18"),
    ] {
        let error = refusal(&format!("[[nic]]\nid = \"a\"\ngbps = {value}\n{BASIS}"));
        assert_eq!(error.code(), "catalog-not-between");
        let all = "nic `a` of the catalogue has `gbps` = ";
        let range = ", which must be from 1e-6 to 1e18";
        assert_eq!(error.to_string(), format!("{all}{said}{range}"));
    }
}

#[test]
fn given_a_text_that_is_not_toml_the_error_is_one_line_with_a_short_harmless_excerpt() {
    let said = |text: &str| refusal(text).to_string();
    let error = said("[[nic]]\nid = 5 b\u{1b}[2J\nmore = 1\nand = 2");
    assert!(
        error.starts_with("the catalogue is not TOML: line 2, column 10: "),
        "{error}"
    );
    assert!(error.contains("in `id = 5 b\\u{1b}[2J`"), "{error}");
    for text in [
        format!("a = {}", "x".repeat(500_000)),
        format!("a = {}", "\u{1b}\u{202e}".repeat(10_000)),
        format!("[[nic]]\nid = 'a'\n{} = 1\n{BASIS}", "y".repeat(500_000)),
        format!("[[{}]]\nid = 'a'\n{BASIS}", "z".repeat(200_000)),
        format!("[[nic]]\nid = 'a'\n{} = -1\n{BASIS}", "y".repeat(500_000)),
        format!(
            "[[nic]]\nid = 'a'\ntransport = '{}'\n{BASIS}",
            "y".repeat(1_000)
        ),
        format!("[[{}\n\n\n", "w\n".repeat(1_000)),
    ] {
        let error = said(&text);
        assert!(error.chars().count() <= 400, "{error}");
        assert!(
            !error.chars().any(crowfly_route::terminal::is_harmful),
            "{error}"
        );
    }
}

#[test]
fn given_a_name_that_does_not_exist_the_nearest_are_suggested() {
    let catalog = Catalog::built_in();
    let hint = |name: &str| catalog.servers.get(name).expect_err("unknown").hint();
    assert_eq!(
        hint("dgx-h10").as_deref(),
        Some("nearest: dgx-h100, dgx-a100, dgx-h200")
    );
    assert!(hint("h100").expect("one").contains("dgx-h100"));
    let none = hint("zzz").expect("one");
    assert_eq!(none, "`crowfly plan catalog --kind server` lists them");
}

#[test]
fn drivers_names_lead_to_entries() {
    let catalog = Catalog::built_in();
    let id = |name: &str| catalog.gpu_by_name(name).map(|entry| entry.id.as_str());
    assert_eq!(id("NVIDIA H100 80GB HBM3"), Some("h100-sxm"));
    assert_eq!(id("NVIDIA GB200"), Some("gb200"));
    assert_eq!(id("NVIDIA B200"), Some("b200-sxm"));
    assert_eq!(id("NVIDIA H100 NVL"), Some("h100-nvl"));
    assert_eq!(id("NVIDIA A100-SXM4-80GB"), Some("a100-sxm-80"));
    assert_eq!(id("Matrox G200"), None);
}
