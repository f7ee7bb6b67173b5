use super::*;

fn copy(process: u32, program: u64, at_ns: u64) -> Copy {
    Copy {
        of: CopyOf::Wait { id: StackId(at_ns * 2), site: StackId(2), path: StackId(4), is_named: false },
        kernel: None,
        process: Pid(process),
        at_ns,
        program: [program; 3],
        registers: [0; crate::kernel::copies::REGISTERS],
        pages: vec![],
        stack: vec![],
    }
}

#[test]
fn copies_of_two_programs_of_one_process_are_not_unwound_together() {
    let groups = by_process(vec![copy(1, 1, 1), copy(2, 1, 2), copy(1, 2, 3), copy(1, 1, 4)]);
    let times: Vec<(u32, Vec<u64>)> =
        groups.iter().map(|(pid, copies)| (pid.0, copies.iter().map(|copy| copy.at_ns).collect())).collect();
    assert_eq!(times, [(1, vec![1, 4]), (2, vec![2]), (1, vec![3])]);
}

#[test]
fn copies_of_a_process_that_runs_another_program_now_are_not_unwound() {
    let own = std::process::id();
    let pulse = Pulse::new(Instant::now() + Duration::from_secs(3600), Place::Own);
    let results = Mutex::new(Vec::new());
    unwind_all(&mut AllCode::new(), Pid(own), &[copy(own, 7, 1)], &results, Duration::MAX, &pulse);
    assert!(results.lock().unwrap().is_empty());
}

#[test]
fn no_copy_is_unwound_when_no_time_is_left() {
    let own = std::process::id();
    let program = crate::stacks::process::Life::of(Pid(own)).unwrap().program();
    for (left, unwound) in [(Duration::from_secs(3600), 1), (Duration::ZERO, 0)] {
        let pulse = Pulse::new(Instant::now() + left, Place::Own);
        let results = Mutex::new(Vec::new());
        let copies = [Copy { program, ..copy(own, 0, 1) }];
        unwind_all(&mut AllCode::new(), Pid(own), &copies, &results, Duration::MAX, &pulse);
        assert_eq!(results.lock().unwrap().len(), unwound);
    }
}
