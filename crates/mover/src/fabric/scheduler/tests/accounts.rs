//! What receipts say: of CPU time, ports, paths that are missing, and what a GPU sees.

use super::*;

#[test]
fn when_transfers_overlap_then_their_receipts_share_the_links_cpu_time_and_lose_none() {
    let world = World::new(&BOTH_SOCKETS[..1]);
    let used = |seconds| *world.links[0].used.lock().expect("no panic") = seconds;
    let early = world.write(1000, None);
    used(8.0);
    let late = world.write(1000, None);
    used(10.0);
    let late_cpu = {
        // The second ends first, all of its bytes with it.
        let op = world.links[0].ops.lock().expect("no panic").remove(1);
        world
            .scheduler
            .completed(RailId(0), op.id, Ok(()), Duration::ZERO);
        late.take().expect("it ended").expect("well").cpu().total()
    };
    used(11.0);
    let early_cpu = world.finish(&early, |_, bytes| Some(bytes)).cpu().total();
    assert!((late_cpu - 1.0).abs() < 1e-9, "{late_cpu}");
    assert!((early_cpu - 10.0).abs() < 1e-9, "{early_cpu}");
}

#[test]
fn the_ports_counters_agree_disagree_or_are_not_there_and_each_is_told_from_the_others() {
    let world = World::new(&BOTH_SOCKETS);
    let slot = world.write(8 * MIB, None);
    let delivery = world.finish(&slot, |nic, bytes| match nic {
        "mlx5_0:1" => Some(bytes + 1000),
        "mlx5_1:1" => Some(0),
        "mlx5_4:1" => None,
        _ => Some(bytes),
    });
    let checked: Vec<&Checked> = delivery.nics.iter().map(|nic| &nic.checked).collect();
    let counted = |bytes| Bytes(bytes);
    assert_eq!(
        checked[0],
        &Checked::Agrees {
            counted: counted(2 * MIB + 1000)
        }
    );
    assert_eq!(
        checked[1],
        &Checked::Disagrees {
            counted: counted(0)
        }
    );
    assert!(matches!(checked[2], Checked::Unavailable { why } if why == "it has no counters"));
    assert_eq!(
        checked[3],
        &Checked::Agrees {
            counted: counted(2 * MIB)
        }
    );
    let small = world.write(1000, None);
    let delivery = world.finish(&small, |_, bytes| Some(bytes));
    let small = &delivery.nics[0].checked;
    assert!(matches!(small, Checked::Unavailable { why } if why.contains("smaller")));
}

#[test]
fn a_better_path_that_is_missing_is_an_obstacle_of_every_receipt_and_a_worse_one_is_not() {
    let world = World::new(&[(Path::Tcp, "eno1", 1.25e9)]);
    let missing = |path, code| {
        let obstacle = Obstacle::blocks(code, "it is missing").seen("a test", "missing");
        Missing::new(path, obstacle)
    };
    world.scheduler.is_missing(vec![
        missing(Path::Verbs, Code::PortDown),
        missing(Path::Tcp, Code::OddRate),
    ]);
    let slot = world.write(MIB, None);
    let receipt = world.finish(&slot, |_, bytes| Some(bytes)).into_receipt();
    let codes: Vec<_> = receipt.obstacles.iter().map(|o| o.code).collect();
    assert_eq!(codes, [Code::PortDown]);
}

#[test]
fn whether_a_gpu_sees_what_was_read_into_it_is_what_the_least_certain_nic_said() {
    let unknown = Visibility::Unknown("no read through the NIC was done".into());
    let fine = Visibility::NotNeeded("the GPU orders the NIC's writes".into());
    for said in [[&fine, &fine], [&fine, &unknown], [&unknown, &fine]] {
        // Both are as far from the GPU, so both carry.
        let world = World::new(&BOTH_SOCKETS[2..]);
        let mut region = Arc::into_inner(region(8 * MIB, None)).expect("nobody else has it");
        region.backing = Buffer::claiming(8 << 20, Place::Gpu(0)).into_backing();
        for (link, visibility) in world.links.iter().zip(said) {
            region.registrations.done.push(Registered {
                path: Path::Verbs,
                nic: link.nic.clone(),
                registration: Registration {
                    address: 0,
                    key: Vec::new(),
                    keep: Arc::new(()),
                    obstacles: Vec::new(),
                    visibility: visibility.clone(),
                    flush: None,
                },
            });
        }
        let slot = world.start(Verb::Read, Arc::new(region), 8 * MIB);
        let delivery = world.finish(&slot, |_, bytes| Some(bytes));
        assert_eq!(delivery.nics.len(), 2);
        let doubtful = said.contains(&&unknown);
        let expected = if doubtful { &unknown } else { &fine };
        assert_eq!(&delivery.receipt.visibility, expected);
    }
}
