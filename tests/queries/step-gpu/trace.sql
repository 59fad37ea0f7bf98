-- Engine 1, one GPU. Step 1: a GEMM from 0 to 10 ms and attention on another stream from 5 to 12 ms, a copy from 14 to
-- 15 ms; step 2: KV write, norm, sampling and an unknown kernel, 1 ms each without gaps, from 20 ms on; the last one was
-- launched after the forward pass. Step 3 starts while step 2 still runs. The last kernel belongs to no step.
INSERT INTO kernel_name (kernel_name_id, source_id, short_name, demangled_name, category) VALUES
    (1, 1, 'g', 'g', 'gemm'), (2, 1, 'a', 'a', 'attention'), (3, 1, 'w', 'w', 'kv_write'),
    (4, 1, 'n', 'n', 'norm_activation'), (5, 1, 's', 's', 'sampling'), (6, 1, 'o', 'o', 'other'),
    (7, 1, 'c', 'c', 'communication'), (8, 1, 'k', 'k', 'kvtrace');
INSERT INTO gpu_activity (activity_id, source_id, kind, start_ns, end_ns, pid, device, stream, kernel_name_id) VALUES
    (1, 1, 'kernel', 0, 10000000, 10, 0, 7, 1),
    (2, 1, 'kernel', 5000000, 12000000, 10, 0, 8, 2),
    (3, 1, 'memcpy', 14000000, 15000000, 10, 0, 7, NULL),
    (4, 1, 'kernel', 20000000, 21000000, 10, 0, 7, 3),
    (5, 1, 'kernel', 21000000, 22000000, 10, 0, 7, 4),
    (6, 1, 'kernel', 22000000, 23000000, 10, 0, 7, 5),
    (7, 1, 'kernel', 23000000, 24000000, 10, 0, 7, 6),
    (8, 1, 'kernel', 23500000, 25500000, 10, 0, 9, 7),
    (9, 1, 'kernel', 25500000, 26000000, 10, 0, 9, 8),
    (10, 1, 'kernel', 30000000, 31000000, 10, 0, 7, 1);
INSERT INTO gpu_attribution (activity_id, engine_id, step, method) VALUES
    (1, 1, 1, 'nvtx_forward'), (2, 1, 1, 'nvtx_forward'), (3, 1, 1, 'nvtx_forward'), (4, 1, 2, 'nvtx_forward'),
    (5, 1, 2, 'nvtx_forward'), (6, 1, 2, 'nvtx_sample'), (7, 1, 2, 'after_range'), (8, 1, 3, 'nvtx_forward'),
    (9, 1, 3, 'nvtx_forward'), (10, NULL, NULL, NULL);
