"""Names of the options of Spark's readers and writers, so that a misspelt one is refused: Spark would ignore it."""

from __future__ import annotations

_FILES = (
    "pathGlobFilter", "modifiedBefore", "modifiedAfter", "recursiveFileLookup", "ignoreCorruptFiles",
    "ignoreMissingFiles", "timeZone", "compression", "extension",
)  # fmt: skip
_CSV = (
    "sep", "delimiter", "encoding", "charset", "quote", "quoteAll", "escape", "escapeQuotes", "comment", "header",
    "inferSchema", "preferDate", "enforceSchema", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nullValue",
    "nanValue", "positiveInf", "negativeInf", "dateFormat", "timestampFormat", "timestampNTZFormat",
    "enableDateTimeParsingFallback", "maxColumns", "maxCharsPerColumn", "mode", "columnNameOfCorruptRecord",
    "multiLine", "charToEscapeQuoteEscaping", "samplingRatio", "emptyValue", "locale", "lineSep",
    "unescapedQuoteHandling",
)  # fmt: skip
JSON = (
    "primitivesAsString", "prefersDecimal", "allowComments", "allowUnquotedFieldNames", "allowSingleQuotes",
    "allowNumericLeadingZeros", "allowBackslashEscapingAnyCharacter", "mode", "columnNameOfCorruptRecord",
    "dateFormat", "timestampFormat", "timestampNTZFormat", "enableDateTimeParsingFallback", "multiLine",
    "allowUnquotedControlChars", "encoding", "lineSep", "samplingRatio", "dropFieldIfAllNull", "locale",
    "allowNonNumericNumbers", "ignoreNullFields", "timeZone",
)  # fmt: skip
_COLUMNAR = ("mergeSchema", "datetimeRebaseMode", "int96RebaseMode", "wholetext", "lineSep")
FILES = tuple(dict.fromkeys((*_FILES, *_CSV, *JSON, *_COLUMNAR)))
"""Options of files in the formats csv, json, orc, parquet and text."""
FILE_STREAMS = (
    *FILES, "maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "fileNameOnly", "maxFileAge", "maxCachedFiles",
)  # fmt: skip
KAFKA_STREAMS = (
    "failOnDataLoss", "maxOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition", "minOffsetsPerTrigger",
    "maxTriggerDelay", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix",
)  # fmt: skip
DELTA_STREAMS = (
    "startingVersion", "startingTimestamp", "maxFilesPerTrigger", "maxBytesPerTrigger", "ignoreDeletes",
    "ignoreChanges", "skipChangeCommits", "readChangeFeed", "failOnDataLoss",
)  # fmt: skip
DELTA_TABLES = ("versionAsOf", "timestampAsOf")
