-- Two engines of a data-parallel run that agree in all but the scheduler, the running requests, prefix caching, and
-- the number of KV cache groups. Engine 1 offloads to 10 chunks of 4 blocks in host memory (and some on disk, which is
-- no host memory), engine 2 to 5 of one block. Two jobs, 1 s apart, and a request of no job.
INSERT INTO run VALUES ('vllm_version', '0.32.0'), ('gpu', 'NVIDIA H100 80GB HBM3');
INSERT INTO engine (engine_id, model, scheduler, policy, block_size_tokens, blocks, kv_groups, max_num_seqs, max_num_batched_tokens,
    max_model_len, prefix_caching, chunked_prefill, async_scheduling, block_bytes, connector, tp_size, pp_size, dp_size)
VALUES
    (1, 'm', 'vllm.v1.core.sched.scheduler.Scheduler', 'fcfs', 16, 100, 1, 8, 2048, 4096, true, true, false, 1000,
        'OffloadingConnector', 1, 1, 2),
    (2, 'm', 'my.sched.Pinning', 'fcfs', 16, 100, 2, 4, 2048, 4096, false, true, false, 1000, 'OffloadingConnector', 1, 1, 2);
INSERT INTO connector (process_id, connector, role, tier, capacity_blocks, blocks_per_chunk) VALUES
    (1, 'OffloadingConnector', 'scheduler', 'cpu', 10, 4),
    (1, 'SimpleCPUOffloadConnector', 'scheduler', 'disk', 70, 1),
    (1, 'OffloadingConnector', 'worker', 'cpu', 10, 4),
    (2, 'OffloadingConnector', 'scheduler', 'cpu', 5, NULL);
INSERT INTO request (request, session, arrival_ns, queued_ns) VALUES
    (1, 'a', 0, 1),
    (2, 'b', 1000000000, 1000000001),
    (3, 'a', 3000000000, 3000000001),
    (4, NULL, NULL, 4000000000);
