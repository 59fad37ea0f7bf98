-- Two copies to the GPU, 3000 bytes in 2 us together, one of them for step 4; one back whose duration was not seen.
INSERT INTO gpu_activity (activity_id, source_id, kind, start_ns, end_ns, pid, device) VALUES
    (1, 1, 'memcpy', 0, 500, 10, 0), (2, 1, 'memcpy', 1000, 2500, 10, 0), (3, 1, 'memcpy', 3000, 3000, 10, 0),
    (4, 1, 'memset', 3000, 4000, 10, 0);
INSERT INTO gpu_transfer (activity_id, bytes, copy_kind, source_memory, target_memory) VALUES
    (1, 1000, 'host_to_device', 'pinned', 'device'),
    (2, 2000, 'host_to_device', 'pinned', 'device'),
    (3, 8, 'device_to_host', 'device', 'pageable'),
    (4, 8, NULL, NULL, 'device');
INSERT INTO gpu_attribution (activity_id, engine_id, step, method) VALUES (2, 1, 4, 'nvtx_forward');
