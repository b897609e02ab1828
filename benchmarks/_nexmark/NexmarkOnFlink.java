import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.core.fs.FileStatus;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.columnar.vector.VectorizedColumnBatch;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;

/**
 * Runs SQL over the table `events`: the files of a directory in the order of their names, read by Flink's source of files
 * with its reader of Parquet.
 *
 * <p>Flink's SQL connector has the same source and reader, but hands files out in any order, so that events would be late.
 * Here two readers share each file, a row group each, as Spark's tasks do.
 *
 * <p>Arguments: settings as key=value, "--", the directory, the type of the rows, the watermark's delay, the file that gets
 * the times at which a reader asked for the next half of a file, and the statements.
 */
public final class NexmarkOnFlink {
    private static final List<Long> REQUESTS_MS = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        int end = Arrays.asList(args).indexOf("--");
        var settings = new Configuration();
        for (String setting : Arrays.asList(args).subList(0, end)) {
            String[] parts = setting.split("=", 2);
            settings.setString(parts[0], parts[1]);
        }
        String events = args[end + 1], rowType = args[end + 2], delay = args[end + 3], requests = args[end + 4];

        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        var tables = StreamTableEnvironment.create(environment);
        var type = (RowType) LogicalTypeParser.parse(rowType, NexmarkOnFlink.class.getClassLoader());
        var rows = InternalTypeInfo.of(type);
        var parquet = new ParquetColumnarRowInputFormat<FileSourceSplit>(
                new org.apache.hadoop.conf.Configuration(), type, rows, VectorizedColumnBatch.DEFAULT_SIZE, true, true);
        var source = FileSource.forBulkFileFormat(parquet, new Path(events))
                .setFileEnumerator(() -> (paths, minimum) -> halves(paths[0]))
                .setSplitAssigner(InOrder::new)
                .build();
        var schema = Schema.newBuilder()
                .columnByExpression("rowtime", "TO_TIMESTAMP_LTZ(ts / 1000, 3)")
                .watermark("rowtime", "rowtime - " + delay)
                .build();
        var stream = environment.fromSource(source, WatermarkStrategy.noWatermarks(), "events", rows);
        tables.createTemporaryView("events", stream, schema);
        for (String statement : Arrays.asList(args).subList(end + 5, args.length)) {
            tables.executeSql(statement).await();
        }
        Files.writeString(java.nio.file.Path.of(requests), REQUESTS_MS.toString());
        System.exit(0);
    }

    private static List<FileSourceSplit> halves(Path directory) throws IOException {
        FileStatus[] files = directory.getFileSystem().listStatus(directory);
        Arrays.sort(files, Comparator.comparing(file -> file.getPath().getName()));
        var splits = new ArrayList<FileSourceSplit>();
        for (FileStatus file : files) {
            long size = file.getLen(), half = size / 2;
            splits.add(part(file, splits.size(), 0, half));
            splits.add(part(file, splits.size(), half, size - half));
        }
        return splits;
    }

    private static FileSourceSplit part(FileStatus file, int number, long offset, long length) {
        return new FileSourceSplit(
                String.format("%06d", number), file.getPath(), offset, length, file.getModificationTime(), file.getLen());
    }

    private static final class InOrder implements FileSplitAssigner {
        private final Queue<FileSourceSplit> splits;

        InOrder(Collection<FileSourceSplit> splits) {
            this.splits = new ArrayDeque<>(splits);
        }

        @Override
        public Optional<FileSourceSplit> getNext(String host) {
            REQUESTS_MS.add(System.nanoTime() / 1_000_000);
            return Optional.ofNullable(splits.poll());
        }

        @Override
        public void addSplits(Collection<FileSourceSplit> more) {
            splits.addAll(more);
        }

        @Override
        public Collection<FileSourceSplit> remainingSplits() {
            return splits;
        }
    }
}
