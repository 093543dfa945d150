//! The named profiles of the timing models, and their permitted overrides.

use bimetal_block::media::model::{ModelError, ModelType, Parameters, profiles};

fn parameters(name: &str, overrides: &str) -> Parameters {
    let of = profiles()
        .iter()
        .find(|profile| profile.name == name)
        .expect("a profile")
        .of;
    let overrides = overrides.parse().expect("overrides are TOML");
    Parameters::from_profile(of, name, overrides).expect("valid overrides")
}

#[test]
fn an_unknown_profile_is_refused_with_the_known_ones() {
    let refused = Parameters::from_profile(ModelType::Hdd, "hdd-7201", toml::Table::new());
    let message = refused.expect_err("no such profile").to_string();
    for name in [
        "hdd-7201",
        "hdd-7200",
        "hdd-7200-qd1",
        "hdd-5400",
        "hdd-smr",
    ] {
        assert!(message.contains(name), "{message}");
    }
    assert!(!message.contains("nvme"), "{message}");
}

#[test]
fn mistakes_in_overrides_are_refused() {
    let refuse = |of, name, text: &str| {
        let overrides = text.parse().expect("TOML");
        Parameters::from_profile(of, name, overrides).expect_err(text)
    };
    let wrong_type = refuse(ModelType::Hdd, "sata-2009", "");
    assert!(
        matches!(wrong_type, ModelError::WrongType { .. }),
        "{wrong_type}"
    );
    for text in [
        "pool_byte = 1",
        "freeze = { mean_ns = 1 }",
        "freeze = 5",
        "pool_bytes = \"many\"",
        "pool_bytes = -1",
        "pool_bytes = \"5ms\"",
        "channels_commands = \"5\"",
    ] {
        let error = refuse(ModelType::Ssd, "sata-2009", text);
        assert!(
            matches!(error, ModelError::Override { .. }),
            "{text}: {error}"
        );
    }
    for (of, name, text) in [
        (ModelType::Ssd, "sata-2009", "write_rate_bytes_per_s = 0"),
        (ModelType::Ssd, "sata-2009", "channels_commands = 0"),
        (ModelType::Ssd, "sata-2009", "freeze_frees_bytes = 0"),
        (ModelType::Ssd, "sata-2009", "stall_probability = 1.5"),
        (ModelType::Ssd, "sata-2009", "sequential_pool_share = nan"),
        (ModelType::Ssd, "sata-2009", "freeze = { sigma = inf }"),
        (
            ModelType::Ssd,
            "sata-2009",
            "freeze = { cap_ns = 9000000000000000 }",
        ),
        (ModelType::Hdd, "hdd-7200", "queue_commands = 0"),
        (
            ModelType::Hdd,
            "hdd-7200",
            "inner_rate_bytes_per_s = 200000000",
        ),
        (ModelType::Hdd, "hdd-7200", "zones = 0"),
        (ModelType::Hdd, "hdd-smr", "band_bytes = 0"),
        (
            ModelType::Network,
            "network-disk",
            "rate_commands_per_s = 0",
        ),
    ] {
        let error = refuse(of, name, text);
        assert!(
            matches!(error, ModelError::OutOfRange { .. }),
            "{text}: {error}"
        );
    }
}

#[test]
fn an_override_changes_what_it_names_and_nothing_else() {
    let Parameters::Ssd(base) = parameters("sata-2009", "") else {
        panic!("an SSD")
    };
    let changed = parameters("sata-2009", "freeze = { sigma = 1 }\npool_bytes = 5");
    let Parameters::Ssd(mut changed) = changed else {
        panic!("an SSD")
    };
    assert_eq!((changed.freeze.sigma, changed.pool_bytes), (1.0, 5));
    changed.freeze.sigma = base.freeze.sigma;
    changed.pool_bytes = base.pool_bytes;
    assert_eq!(changed, base);
}

#[test]
fn overrides_may_be_spelt_with_units() {
    let spelt = "pool_bytes = \"128MiB\"\nwrite_rate_bytes_per_s = \"68MB\"\n\
                 freeze = { median_ns = \"250ms\" }";
    let plain = "pool_bytes = 134217728\nwrite_rate_bytes_per_s = 68000000\n\
                 freeze = { median_ns = 250000000 }";
    assert_eq!(
        parameters("sata-2009-a", spelt),
        parameters("sata-2009-a", plain)
    );
}

#[test]
fn profiles_are_unique_valid_and_paired() {
    for profile in profiles() {
        let same = profiles()
            .iter()
            .filter(|other| other.name == profile.name)
            .count();
        assert_eq!(same, 1, "{}", profile.name);
        assert_eq!(parameters(profile.name, ""), (profile.parameters)());
        if let Some(partner) = profile.partner {
            assert!(
                profiles().iter().any(|other| other.name == partner),
                "{partner}"
            );
        }
    }
    for of in [
        ModelType::Ssd,
        ModelType::Hdd,
        ModelType::Network,
        ModelType::Flash,
    ] {
        Parameters::from_profile(of, of.default_profile(), toml::Table::new()).expect("a default");
    }
}
