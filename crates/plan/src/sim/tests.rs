use super::*;
use crate::catalog::Catalog;
use crate::cluster::{Overrides, ServerSpec};

const BYTES: f64 = 140e9;

fn on(server: &str, servers: u32, oversubscription: f64) -> Simulation {
    let catalog = Catalog::built_in();
    let server = ServerSpec::from_catalog(&catalog, server, &Overrides::default());
    let cluster = Cluster::new(server.expect("sound"), servers, oversubscription);
    Simulation::of(cluster.expect("sound"), 64, BYTES)
}

fn dgx(servers: u32) -> Simulation {
    on("dgx-h100", servers, 1.0)
}

fn run(simulation: &Simulation) -> Simulated {
    simulation.run().expect("possible")
}

#[test]
fn given_a_healthy_fabric_the_closed_form_is_met_within_two_percent() {
    for servers in [1, 2, 7, 8, 64, 512, 2048] {
        for routing_placement in [Placement::Packed, Placement::Scattered] {
            let mut simulation = dgx(servers);
            simulation.placement = routing_placement;
            let found = run(&simulation);
            let closed = found.closed_form_seconds.expect("nothing is wrong");
            let error = found.all_reduce_seconds / closed - 1.0;
            assert!(
                error.abs() <= 0.02,
                "{servers} {routing_placement:?}: {error}"
            );
        }
    }
    let racks = run(&on("gb200-nvl72", 16, 1.0));
    let closed = racks.closed_form_seconds.expect("nothing is wrong");
    assert!((racks.all_reduce_seconds / closed - 1.0).abs() <= 0.02);
}

#[test]
fn sixteen_thousand_gpus_take_seconds_and_a_hundred_thousand_are_possible() {
    let started = std::time::Instant::now();
    let found = run(&dgx(2048));
    assert_eq!(found.gpus, 16_384);
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    let mut largest = dgx(16_384);
    largest.radix = 128;
    assert_eq!(run(&largest).gpus, MAX_GPUS);
    let refused = dgx(16_385).run().expect_err("too many");
    assert_eq!(refused.code(), "plan-out-of-range");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut simulation = dgx(100);
    simulation.routing = Routing::Static;
    simulation.placement = Placement::Scattered;
    simulation.failed_links = 0.05;
    simulation.failed_nics = 3;
    let first = run(&simulation);
    assert_eq!(first, run(&simulation));
    simulation.seed = 1;
    // The slowest ring may be as slow, but not every link is as busy.
    assert_ne!(first.links, run(&simulation).links);
}

#[test]
fn hashed_flows_collide_where_adaptive_ones_do_not_and_rails_spare_them() {
    let mut simulation = dgx(256);
    simulation.placement = Placement::Scattered;
    let adaptive = run(&simulation).network_seconds;
    simulation.routing = Routing::Static;
    let hashed = run(&simulation).network_seconds;
    assert!(hashed >= 2.0 * adaptive, "{hashed} {adaptive}");
    // Neighbours of one leaf do not go up at all.
    let mut small = dgx(32);
    small.routing = Routing::Static;
    let closed = {
        let mut healthy = small.clone();
        healthy.routing = Routing::Adaptive;
        run(&healthy).network_seconds
    };
    assert!((run(&small).network_seconds / closed - 1.0).abs() < 1e-9);
}

#[test]
fn given_whole_servers_on_a_leaf_rings_meet_in_the_links_up_that_rails_keep_apart() {
    // Four leaves of eight servers: each ring leaves each of them once, by one of 64 links.
    let mut simulation = dgx(32);
    (simulation.radix, simulation.routing) = (128, Routing::Static);
    let rails = run(&simulation);
    simulation.wiring = Wiring::Servers;
    let found = run(&simulation);
    let up = found.links.iter().find(|tier| tier.name == "leaf to spine");
    assert_eq!(up.expect("two tiers").links, 4 * 64);
    let mean = |found: &Simulated| found.jobs[0].mean_seconds;
    assert!(mean(&found) > mean(&rails), "{}", mean(&found));
    assert!(mean(&found) <= found.jobs[0].seconds);
    assert!((mean(&rails) / rails.jobs[0].seconds - 1.0).abs() < 1e-9);
    // What two flows share is a whole link: the slowest ring takes twice, three or four times as long.
    let slowed = found.network_seconds / rails.network_seconds;
    assert!(
        (slowed - slowed.round()).abs() < 0.01 && slowed > 1.5,
        "{slowed}"
    );
    // Where packets spread by load nothing is lost.
    simulation.routing = Routing::Adaptive;
    assert!((run(&simulation).network_seconds / rails.network_seconds - 1.0).abs() < 1e-9);
}

#[test]
fn the_way_up_decides_the_way_down_and_failed_links_are_gone_round() {
    for servers in [64, 512] {
        let mut simulation = dgx(servers);
        simulation.routing = Routing::Static;
        simulation.placement = Placement::Scattered;
        let healthy = run(&simulation);
        simulation.failed_links = 0.3;
        let broken = run(&simulation);
        assert!(
            broken.network_seconds >= healthy.network_seconds,
            "{servers}"
        );
        assert!(broken.network_seconds.is_finite());
    }
    // One link up a leaf: two leaves whose only spines differ do not reach each other.
    let mut simulation = dgx(64);
    (simulation.routing, simulation.placement) = (Routing::Static, Placement::Scattered);
    simulation.failed_links = 0.97;
    assert_eq!(
        simulation.run().expect_err("cut off").code(),
        "plan-impossible"
    );
}

#[test]
fn one_slow_server_slows_the_ring_to_its_rate() {
    let mut simulation = dgx(64);
    simulation.stragglers = 1.0 / 64.0;
    simulation.straggler_rate = 0.5;
    let slow = run(&simulation);
    let healthy = run(&dgx(64));
    assert!((slow.network_seconds / healthy.network_seconds - 2.0).abs() < 1e-9);
    assert_eq!(slow.closed_form_seconds, None);
    assert!(slow.jobs[0].bottleneck.contains("NIC"));
}

#[test]
fn a_failed_nic_makes_its_neighbour_carry_two_rails() {
    let mut simulation = dgx(64);
    simulation.failed_nics = 1;
    let ratio = run(&simulation).network_seconds / run(&dgx(64)).network_seconds;
    assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn a_server_all_of_whose_nics_failed_takes_part_in_nothing() {
    let mut simulation = dgx(2);
    simulation.failed_nics = 15;
    let refused = simulation.run().expect_err("a server without NICs");
    assert!(
        refused.to_string().contains("all NICs of server"),
        "{refused}"
    );
    simulation.failed_nics = 1;
    assert!(run(&simulation).network_seconds > run(&dgx(2)).network_seconds);
}

#[test]
fn failed_links_up_cost_nothing_until_they_are_needed() {
    let mut packed = dgx(64);
    packed.failed_links = 0.5;
    let healthy = run(&dgx(64)).network_seconds;
    assert_eq!(run(&packed).network_seconds, healthy);
    packed.placement = Placement::Scattered;
    assert!(run(&packed).network_seconds > healthy);
    packed.failed_links = 1.0;
    assert_eq!(packed.run().expect_err("cut off").code(), "plan-impossible");
}

#[test]
fn an_all_to_all_feels_oversubscription_that_a_packed_ring_does_not() {
    let with = |oversubscription| {
        let mut simulation = on("dgx-h100", 128, oversubscription);
        simulation.all_to_all = Some(10e9);
        let found = run(&simulation);
        let job = |name: &str| found.jobs.iter().find(|job| job.name == name).cloned();
        (
            job("all-reduce").expect("one"),
            job("all-to-all").expect("one"),
        )
    };
    let (ring, exchange) = with(1.0);
    assert!(ring.seconds >= ring.alone_seconds && exchange.seconds >= exchange.alone_seconds);
    let (narrow_ring, narrow_exchange) = with(4.0);
    assert!((narrow_ring.alone_seconds / ring.alone_seconds - 1.0).abs() < 1e-9);
    assert!(narrow_exchange.alone_seconds > 2.0 * exchange.alone_seconds);
}

#[test]
fn a_checkpoint_beside_the_all_reduce_slows_it_and_takes_what_the_storage_allows() {
    let mut simulation = dgx(64);
    simulation.checkpoint = Some(CheckpointTraffic {
        bytes: 980e9,
        storage: 100e9,
    });
    let found = run(&simulation);
    let checkpoint = found
        .jobs
        .iter()
        .find(|job| job.name == "checkpoint")
        .expect("one");
    assert!(
        (checkpoint.alone_seconds - 9.8).abs() < 0.02,
        "{}",
        checkpoint.alone_seconds
    );
    assert_eq!(checkpoint.bottleneck, "storage");
    assert!(found.network_seconds > run(&dgx(64)).network_seconds);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let refused = |change: fn(&mut Simulation)| {
        let mut simulation = dgx(8);
        change(&mut simulation);
        simulation.run().expect_err("refused").code()
    };
    assert_eq!(refused(|s| s.bytes = 0.0), "plan-not-positive");
    assert_eq!(refused(|s| s.bytes = f64::NAN), "plan-not-positive");
    assert_eq!(refused(|s| s.failed_links = 1.5), "plan-not-between");
    assert_eq!(refused(|s| s.straggler_rate = 0.0), "plan-not-between");
    assert_eq!(refused(|s| s.failed_nics = 64), "plan-out-of-range");
    assert_eq!(refused(|s| s.radix = 2), "plan-not-between");
}
